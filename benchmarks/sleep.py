"""Measures sleeping control planes: `python -m benchmarks.sleep --control-planes 1000`.

Runs `python -m kplane.embedded --gateway`. Creates N control planes at once, each asleep and with a registration.
Then requests through the gateway wake some of them, first one by one, then 20 at once. With `--in-use 24`, clients use
24 control planes in turn.

Prints JSON:
- `ready_seconds`: from the first create until all control planes are Ready;
- `mib_each`: growth of the anonymous memory of etcd, operator, mcm and gateway, divided by N;
- `disk_mib_each`: growth of the cluster's files on disk, divided by N;
- `wake_p50_seconds`, `wake_p99_seconds`: from the request of a client to the first correct response.

Before the measurement, a control plane is created, woken and deleted. So the template exists, and the programs have
loaded the modules they need. All programs share this machine, so the result includes their load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.cost import passes_by_controller, requests_by_kind
from benchmarks.fleet import Progress
from benchmarks.programs import API_SERVERS, SHARED, Programs, cluster_with_gateway, growth, print_result
from benchmarks.visits import Answers, Visitor, fall_asleep, take_turns
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig, Informer, NotFound

_CLASS: Final = "asleep"
_IDLE: Final = "2m"
_FIRST: Final = "first"
_FIRST_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 180.0
_AT_ONCE: Final = 64
_WOKEN_AT_ONCE: Final = 20
_PAUSE_SECONDS: Final = 0.2
_SAMPLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the options of a measurement."""

    control_planes: int
    wakes: int
    in_use: int
    minutes: float
    settle_seconds: float

    @property
    def names(self) -> list[str]:
        """Names of the control planes."""
        return [f"tenant-{index:04d}" for index in range(self.control_planes)]

    @property
    def deadline_seconds(self) -> float:
        """Seconds within which all control planes must be Ready."""
        return 180.0 + self.control_planes


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory and disk usage of the cluster at a moment, in MiB by part."""

    anonymous: dict[str, float]
    pss: dict[str, float]
    disk: dict[str, float]

    @classmethod
    def of(cls, programs: Programs) -> Sample:
        """Measure the running programs."""
        memory = programs.memory()
        anonymous, pss = ({part: usage[field] for part, usage in memory.items()} for field in (1, 0))
        return cls(anonymous, pss, programs.disk())


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def _is_ready(obj: dict[str, Any]) -> bool:
    conditions = obj.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _is_known(obj: dict[str, Any]) -> bool:
    """Return whether condition Ready of a registration has reason Hibernated."""
    conditions = obj.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["reason"] == "Hibernated" for condition in conditions)


async def _create(client: Client, names: Sequence[str]) -> None:
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> None:
        async with at_once:
            await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": {"classRef": {"name": _CLASS}}})

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(create(name))


async def _first(client: Client) -> dict[str, float]:
    """Create, wake, hibernate and delete a control plane. Returns the seconds of each step."""
    virtual = {"start": "OnDemand", "idle": {"after": _IDLE}}
    spec = {"deletionPolicy": "Destroy", "defaultServices": ["Controllers"], "virtual": virtual}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": _CLASS}, "spec": spec})
    times = [time.monotonic()]
    async with asyncio.timeout(_FIRST_SECONDS):
        await _create(client, [_FIRST])
        while not _is_ready(await client.get(CONTROL_PLANES, _FIRST)):  # noqa: ASYNC110 - once in a run
            await asyncio.sleep(_PAUSE_SECONDS)
        times.append(time.monotonic())
        async with await Visitor.of(client, _FIRST) as visitor:
            await visitor.ask()
        times.append(time.monotonic())
        await fall_asleep(client, _FIRST)
        times.append(time.monotonic())
        await client.delete(CONTROL_PLANES, _FIRST)
        with contextlib.suppress(NotFound):
            while await client.get(CONTROL_PLANES, _FIRST):  # noqa: ASYNC110 - once in a run
                await asyncio.sleep(_PAUSE_SECONDS)
        times.append(time.monotonic())
    names = ("ready_with_template", "woken", "asleep_again", "removed")
    return {name: round(times[number + 1] - times[number], 2) for number, name in enumerate(names)}


async def _births(client: Client, target: Target, *, programs: Programs, config: ClusterConfig) -> dict[str, Any]:
    """Create all control planes, and measure until they are Ready and at rest."""
    number = target.control_planes
    ready, hibernated = Progress(number, _is_ready), Progress(number, _is_known)
    operator, load = programs.handle.operator_url or "", os.getloadavg()
    before, requests_before, passes_before = (
        Sample.of(programs),
        await requests_by_kind(config),
        await passes_by_controller(operator),
    )
    async with asyncio.TaskGroup() as tasks:
        informers = [
            tasks.create_task(Informer(client, CONTROL_PLANES).run(ready.saw)),
            tasks.create_task(Informer(client, CONTROL_PLANE_REGISTRATIONS).run(hibernated.saw)),
        ]
        cpu_before, began = programs.processor(), time.monotonic()
        await _create(client, target.names)
        created = time.monotonic() - began
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(target.deadline_seconds):
                await ready.complete.wait()
        until_ready = growth(cpu_before, programs.processor())
        _say(f"{len(ready.reached)} of {number} Ready after {time.monotonic() - began:.1f} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(target.deadline_seconds):
                await hibernated.complete.wait()
        for task in informers:
            task.cancel()
    await asyncio.sleep(target.settle_seconds)
    until_rest, requests = growth(cpu_before, programs.processor()), await requests_by_kind(config) - requests_before
    after, passes = Sample.of(programs), await passes_by_controller(operator) - passes_before
    anonymous, pss = growth(before.anonymous, after.anonymous), growth(before.pss, after.pss)
    disk, readiness = growth(before.disk, after.disk), ready.report(began)
    return {
        "ready_seconds": readiness.get("all"),
        "mib_each": round(sum(anonymous[part] for part in SHARED) / number, 4),
        "disk_mib_each": round(sum(disk.values()) / number, 4),
        "births": {
            "load_average": [round(value, 1) for value in (*load, *os.getloadavg())],
            "seconds": {"created": round(created, 2), "ready": readiness, "registrations": hibernated.report(began)},
            "processor_seconds_until_ready": _times(until_ready, 1.0),
            "processor_milliseconds_each_until_ready": _times(until_ready, 1000 / number),
            "processor_milliseconds_each_until_rest": _times(until_rest, 1000 / number),
            "requests_each": _counted(requests, number=number),
            "passes_of_the_operator_each": _counted(passes, number=number),
        },
        "memory_mib": {
            "with_none": _times(before.anonymous, 1.0),
            "with_all": _times(after.anonymous, 1.0),
            "each": _times(anonymous, 1 / number, digits=4),
            "pss_each": _times(pss, 1 / number, digits=4),
        },
        "disk_mib": {"with_none": _times(before.disk, 1.0), "each": _times(disk, 1 / number, digits=4)},
    }


def _times(values: dict[str, float], factor: float, *, digits: int = 2) -> dict[str, float]:
    return {name: round(value * factor, digits) for name, value in sorted(values.items())}


def _counted(events: Counter[str], *, number: int) -> dict[str, float]:
    rates = {kind: round(count / number, 2) for kind, count in sorted(events.items()) if count >= 0.05 * number}
    return {"all": round(sum(events.values()) / number, 2), **rates}


async def _wakes(client: Client, names: Sequence[str]) -> dict[str, Any]:
    """Wake control planes one by one. Each sleeps again before the next wake."""
    answers = Answers()
    for name in names:
        async with await Visitor.of(client, name) as visitor:
            await answers.measure(visitor)
        await _rest(client, [name])
    return {
        "wake_p50_seconds": answers.percentile(0.5),
        "wake_p99_seconds": answers.percentile(0.99),
        "wakes": {"seconds": [round(seconds, 2) for seconds in answers.seconds], "errors": answers.errors},
    }


async def _woken_at_once(client: Client, names: Sequence[str]) -> dict[str, Any]:
    """Wake control planes at the same time."""
    answers = Answers()
    async with contextlib.AsyncExitStack() as stack:
        visitors = [await stack.enter_async_context(await Visitor.of(client, name)) for name in names]
        await asyncio.gather(*(answers.measure(visitor) for visitor in visitors))
    await _rest(client, names)
    return {
        "number": len(names),
        "p50_seconds": answers.percentile(0.5),
        "seconds": sorted(round(seconds, 2) for seconds in answers.seconds),
        "errors": answers.errors,
    }


async def _rest(client: Client, names: Sequence[str]) -> None:
    """Request sleep for control planes. The measurement continues if a control plane stays awake."""

    async def rest(name: str) -> None:
        try:
            await fall_asleep(client, name)
        except TimeoutError:
            control_plane = await client.get(CONTROL_PLANES, name)
            _say(f"{name} does not fall asleep: {json.dumps(control_plane.get('status', {}).get('conditions'))}")

    await asyncio.gather(*(rest(name) for name in names))


async def _in_use(client: Client, target: Target, *, programs: Programs) -> dict[str, Any]:
    """Let clients use control planes in turn, and sample the memory of all programs."""
    total: list[float] = []
    awake: list[int] = []

    async def sample() -> None:
        while True:
            memory = await asyncio.to_thread(programs.memory)
            total.append(sum(usage.anonymous for usage in memory.values()))
            awake.append(programs.numbers()[API_SERVERS])
            await asyncio.sleep(_SAMPLE_SECONDS)

    sampling = asyncio.create_task(sample())
    try:
        async with contextlib.AsyncExitStack() as stack:
            names = target.names[: target.in_use]
            visitors = [await stack.enter_async_context(await Visitor.of(client, name)) for name in names]
            first, others = await take_turns(visitors, seconds=60 * target.minutes)
    finally:
        sampling.cancel()
    half = len(total) // 2
    return {
        "control_planes": len(names),
        "minutes": target.minutes,
        "idle_after": _IDLE,
        "turns": len(first.seconds) + len(first.errors),
        "first_answer_seconds": {"p50": first.percentile(0.5), "max": first.percentile(1.0)},
        "later_answers": {"number": len(others.seconds), "p50": others.percentile(0.5), "max": others.percentile(1.0)},
        "awake_at_most": max(awake, default=0),
        "memory_mib_of_all_programs": {
            "at_most_in_the_first_half": round(max(total[:half], default=0.0)),
            "at_most_in_the_second_half": round(max(total[half:], default=0.0)),
        },
        "errors": [*first.errors, *others.errors],
    }


async def _run(target: Target, programs: Programs) -> dict[str, Any]:
    config = ClusterConfig.load(programs.handle.admin_kubeconfig)
    async with Client(config, field_manager="kplane") as client:
        first = await _first(client)
        _say(f"one came and went: {first}")
        await asyncio.sleep(target.settle_seconds)
        result = await _births(client, target, programs=programs, config=config)
        result["first_seconds"] = first
        if result["ready_seconds"] is None:
            return result
        result |= await _wakes(client, target.names[: target.wakes])
        _say(f"woken one by one: {result['wakes']}")
        result["woken_at_once"] = await _woken_at_once(client, target.names[-_WOKEN_AT_ONCE:])
        _say(f"woken at once: {result['woken_at_once']}")
        if target.in_use:
            result["in_use"] = await _in_use(client, target, programs=programs)
        return result


def _target(arguments: Sequence[str] | None) -> Target:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sleep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--control-planes", type=int, default=100, help="number of control planes at once (default: %(default)s)")
    add("--wakes", type=int, default=20, help="number woken one by one (default: %(default)s)")
    add("--in-use", type=int, default=0, help="number that clients use in turn (default: none)")
    add("--minutes", type=float, default=10.0, help="so long they are used (default: %(default)s)")
    add("--settle-seconds", type=float, default=15.0, help="pause before memory is read (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.control_planes < 1 or given.wakes < 1:
        parser.error("--control-planes and --wakes need at least 1")
    return Target(given.control_planes, given.wakes, given.in_use, given.minutes, given.settle_seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON. Returns 1 if not all control planes became Ready."""
    target = _target(arguments)
    with cluster_with_gateway() as programs:
        _say(f"the management cluster runs in {programs.handle.directory}")
        result = asyncio.run(_run(target, programs))
    print_result({"control_planes": target.control_planes, **result})
    return 0 if result["ready_seconds"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
