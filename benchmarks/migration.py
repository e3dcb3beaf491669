"""Measures the migration of a control plane in use: `python -m benchmarks.migration --keys 5000 50000`.

Runs `python -m kplane.embedded --gateway`. For each number of keys, fills a virtual control plane with ConfigMaps of
1 KiB. Then moves the control plane to mode Dedicated, and back, while four clients write through the gateway. The
clients do not retry, and record their writes in a ledger. Prints JSON: `hold_seconds` of all moves, and a list `runs`
with an entry for each move:
- `keys_per_second`: the rate of the copying engine, from `copies`;
- `step_seconds`: seconds until the start of each step; Copying includes the restart of a new etcd;
- `lag_ms`: the largest lag of the copy in the status, until the controllers ended;
- `hold_seconds`: time for which writes were held, measured by the operator; `slowest_write_seconds`: by a client;
- `total_seconds`: from the change of `spec.mode` to the new home;
- `lost`: missing acknowledged writes, and deleted objects that came back;
- `copies`: the same data copied to a separate etcd before the move, with the engine and with `etcdctl make-mirror`.

All programs share this machine, so the result includes their load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.ledger import Entry, Ledger
from benchmarks.mirror import Home, Scratch, scratch_etcd
from benchmarks.programs import Programs, cluster_with_gateway, print_result
from benchmarks.visits import published_config
from kplane.api.names import KUBECONFIG_EXTERNAL_KEY, KUBECONFIG_KEY
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.data import Operation, Put
from kplane.provider import Client, ClusterConfig, Informer, NotFound
from kplane.provider.client.resources import CONFIG_MAPS

_CLASS: Final = "moved"
_MODES: Final = ("Dedicated", "Virtual")
_READY_SECONDS: Final = 300.0
_MOVE_SECONDS: Final = 300.0
_PAUSE_SECONDS: Final = 0.2
_STEADY_SECONDS: Final = 2.0
"""Time for which the clients write before and after each move."""
_OBJECT_BYTES: Final = 900
_BATCH: Final = 100
_FOLLOWING: Final = ("Starting", "EndingControllers")


@dataclass(frozen=True, slots=True)
class Options:
    """Holds the options of a measurement."""

    keys: tuple[int, ...]
    writes_a_second: float
    moves: int


@dataclass(slots=True)
class Move:
    """Follows `status.migration` of one control plane, from the change of its spec on."""

    name: str
    mode: str
    before: str | None
    """Start time of the previous migration."""
    steps: dict[str, float] = field(default_factory=dict)
    """Time of the first event of each step, on the monotonic clock."""
    lags: list[int] = field(default_factory=list)
    home_at: float | None = None
    status: dict[str, Any] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def saw(self, event: Any) -> None:
        """Handle an event of a watch."""
        if event.name != self.name:
            return
        status = event.object.get("status") or {}
        migration = status.get("migration") or {}
        if migration.get("startedTime", self.before) == self.before:
            self.status = migration
            return
        step = migration.get("step", "")
        self.steps.setdefault(step, time.monotonic())
        if step in _FOLLOWING:
            self.lags.append(migration.get("lagMilliseconds", 0))
        if self.home_at is None and (status.get("home") or {}).get("mode") == self.mode:
            self.home_at = time.monotonic()
        self.status = migration
        if step == "Completed":
            self.ended.set()

    def report(self, *, began: float) -> dict[str, Any]:
        """Return the figures of a move that has ended."""
        held = self.status.get("holdMilliseconds")
        return {
            "lag_ms": max(self.lags, default=None),
            "hold_seconds": held / 1000 if held is not None else None,
            "total_seconds": round(self.home_at - began, 2) if self.home_at is not None else None,
            "attempts": self.status.get("attempts"),
            "step_seconds": {step: round(at - began, 2) for step, at in self.steps.items()},
        }


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


async def _until(probe: Callable[[], Any], *, what: str) -> None:
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not await probe():  # noqa: ASYNC110 - a few times in a run
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise RuntimeError(f"not within {_READY_SECONDS:g} s: {what}") from None


async def _create(client: Client, name: str) -> None:
    """Create a virtual control plane, and wait until the control plane and its controllers are Ready."""
    # Without a rollback window, the old home is deleted at once, so that the move back copies all data too.
    spec = {"classRef": {"name": _CLASS}, "deletionPolicy": "Destroy", "migration": {"rollbackWindow": "0s"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})

    async def ready() -> bool:
        return bool((await client.get(CONTROL_PLANES, name)).get("status", {}).get("phase") == "Ready")

    async def controlled() -> bool:
        registrations = (await client.list(CONTROL_PLANE_REGISTRATIONS)).items
        return any(_is_true(registration, "Ready") for registration in registrations if _is_of(registration, name))

    await _until(ready, what=f"{name} is Ready")
    await _until(controlled, what=f"controllers of {name}")


def _is_of(registration: dict[str, Any], name: str) -> bool:
    return bool(registration["spec"].get("controlPlaneRef", {}).get("name") == name)


def _is_true(obj: dict[str, Any], condition: str) -> bool:
    conditions = obj.get("status", {}).get("conditions") or ()
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)


async def _fill(tenant: Client, home: Home, *, keys: int) -> dict[str, Entry]:
    """Create a ConfigMap through the API server, and write copies of it to etcd, each with its own name and uid."""
    generator = random.Random(keys)  # noqa: S311 - reproducible
    value, first = generator.randbytes(_OBJECT_BYTES // 2).hex(), f"filled-{0:06d}"
    config_map = await tenant.create(
        CONFIG_MAPS, {"metadata": {"name": first, "namespace": "default"}, "data": {"value": value}}
    )
    uid = config_map["metadata"]["uid"]
    entries = {first: Entry(uid, value)}
    key = f"{home.prefix}configmaps/default/{first}"
    async with home.client() as etcd:
        stored = await etcd.get(key.encode())
        if stored is None or stored.value.count(uid.encode()) != 1:
            raise RuntimeError(f"{key} is not what an API server writes")
        batch: list[Operation] = []
        for number in range(1, keys):
            name, own_uid = f"filled-{number:06d}", str(uuid.UUID(int=generator.getrandbits(128), version=4))
            entries[name] = Entry(own_uid, value)
            copy = stored.value.replace(first.encode(), name.encode()).replace(uid.encode(), own_uid.encode())
            batch.append(Put(key.replace(first, name).encode(), copy))
            if len(batch) == _BATCH or number == keys - 1:
                await etcd.apply(batch)
                batch = []
    return entries


async def _move(client: Client, name: str, *, mode: str) -> dict[str, Any]:
    """Change the mode of a control plane, and wait until the migration is completed."""
    control_plane = await client.get(CONTROL_PLANES, name)
    move = Move(name, mode, ((control_plane.get("status") or {}).get("migration") or {}).get("startedTime"))
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(Informer(client, CONTROL_PLANES).run(move.saw))
        began = time.monotonic()
        await client.patch(CONTROL_PLANES, name, {"spec": {"mode": mode}})
        try:
            async with asyncio.timeout(_MOVE_SECONDS):
                await move.ended.wait()
        except TimeoutError:
            raise RuntimeError(f"{name} did not move to {mode}: {json.dumps(move.status)}") from None
        following.cancel()
    return move.report(began=began)


async def _measure(
    client: Client, name: str, *, mode: str, ledger: Ledger, scratch: Scratch, options: Options, programs: Programs
) -> dict[str, Any]:
    """Measure a move to `mode` while clients write."""
    load, stop = os.getloadavg(), asyncio.Event()
    config = await published_config(client, name, key=KUBECONFIG_KEY)
    home = Home.of(config, directory=programs.handle.operator_directory)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ledger.write(a_second=options.writes_a_second, stop=stop))
        try:
            await asyncio.sleep(_STEADY_SECONDS)
            copies = {"engine": await scratch.follow(home), "make_mirror": await scratch.mirror(home)}
            ledger.writes.slowest_seconds = 0.0
            moved = await _move(client, name, mode=mode)
            await asyncio.sleep(_STEADY_SECONDS)
        finally:
            stop.set()
    lost = await ledger.lost()
    return {
        **moved,
        "keys_per_second": copies["engine"]["keys_per_second"],
        "lost": len(lost),
        "lost_first": lost[:5],
        "acknowledged": ledger.writes.acknowledged,
        "slowest_write_seconds": round(ledger.writes.slowest_seconds, 3),
        "errors": ledger.writes.errors[:20],
        "copies": copies,
        "load_average": [round(value, 1) for value in (*load, *os.getloadavg())],
    }


async def _run(options: Options, programs: Programs, directory: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    async with (
        Client(ClusterConfig.load(programs.handle.admin_kubeconfig), field_manager="kplane") as client,
        scratch_etcd(directory, binaries=resolve()) as scratch,
    ):
        spec = {"deletionPolicy": "Destroy", "defaultServices": ["Controllers"], "virtual": {"start": "Always"}}
        await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": _CLASS}, "spec": spec})
        for keys in options.keys:
            name = f"moved-{keys}"
            await _create(client, name)
            config = await published_config(client, name, key=KUBECONFIG_KEY)
            async with Client(config, field_manager="kplane") as tenant:
                home = Home.of(config, directory=programs.handle.operator_directory)
                filled = await _fill(tenant, home, keys=keys)
            _say(f"{name} is filled")
            external = await published_config(client, name, key=KUBECONFIG_EXTERNAL_KEY)
            async with Ledger(external, filled=filled) as ledger:
                for mode in itertools.islice(itertools.cycle(_MODES), options.moves):
                    measured = await _measure(
                        client, name, mode=mode, ledger=ledger, scratch=scratch, options=options, programs=programs
                    )
                    runs.append({"keys": keys, "to": mode, **measured})
                    _say(json.dumps(runs[-1]))
            await client.delete(CONTROL_PLANES, name)
            with contextlib.suppress(NotFound):
                while await client.get(CONTROL_PLANES, name):  # noqa: ASYNC110 - once in a run
                    await asyncio.sleep(_PAUSE_SECONDS)
    return runs


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.migration", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--keys", type=int, nargs="+", default=[5000, 50000], help="objects of each control plane (default: 5000 50000)"
    )
    add("--writes-a-second", type=float, default=200.0, help="of all clients together (default: %(default)s)")
    add("--moves", type=int, default=2, help="of each control plane, there and back in turns (default: %(default)s)")
    given = parser.parse_args(arguments)
    if min(*given.keys, given.moves) < 1 or given.writes_a_second <= 0:
        parser.error("--keys, --moves and --writes-a-second must be more than 0")
    return Options(tuple(given.keys), given.writes_a_second, given.moves)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON. Returns 1 if a write was lost or refused."""
    options = _options(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-", ignore_cleanup_errors=True) as directory,
        cluster_with_gateway() as programs,
    ):
        _say(f"the management cluster runs in {programs.handle.directory}")
        runs = uvloop.run(_run(options, programs, Path(directory)))
    holds = [run["hold_seconds"] for run in runs if run["hold_seconds"] is not None]
    held = {"p50": statistics.median(holds), "max": max(holds)} if holds else None
    print_result({"writes_a_second": options.writes_a_second, "hold_seconds": held, "runs": runs})
    return 1 if any(run["lost"] or run["errors"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
