"""Steps of the demo. Each makes a change, verifies it and shows the result, or raises `DemoFailed`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp

from kplane.api import ControlPlane, ControlPlaneMode, ControlPlanePhase, MigrationStatus
from kplane.cli.demo.caller import Caller
from kplane.cli.demo.cost import Cost
from kplane.cli.demo.display import Proof
from kplane.cli.demo.instances import instance_of, instances, mcm_process
from kplane.cli.demo.ledger import Ledger
from kplane.cli.demo.orders import EARLIER, LATER
from kplane.cli.demo.store import count_keys, difference, stored
from kplane.cli.demo.tenant import Tenant
from kplane.cli.demo.waiting import SOON, wait_for
from kplane.cli.errors import DemoFailed
from kplane.client import ControlPlanes, asleep, awake, ready
from kplane.embedded.handle import Handle
from kplane.workloads import find_processes

__all__ = ["ASLEEP", "DESTROYED", "EXAMPLES", "LEAST", "MOVED", "STAYS", "STEPS", "Demo", "Step"]

EXAMPLES: Final = Path(__file__).parent / "manifests"

STAYS: Final = "acme"
MOVED: Final = "globex"
DESTROYED: Final = "initech"
ASLEEP: Final = "tenant-001"
"""Control plane without requests in the demo, so it sleeps at the end."""
_TENANTS: Final = (STAYS, MOVED, DESTROYED)
_NEIGHBOUR: Final = f"{DESTROYED}-dev"
"""Name that begins with the name of the deleted control plane: a prefix without its slash would destroy both."""
LEAST: Final = len(_TENANTS) + 2
"""Smallest number of control planes for the steps."""
_ON_DEMAND: Final = "on-demand"
"""Class of control planes that sleep until a request arrives."""
_AT_ONCE: Final = 8
"""Number of concurrent creations. More creations would only wait for the API server."""
_OBJECTS: Final = 500
"""Number of objects that are written before the move, so that there are data to move."""
_NAMESPACE: Final = "shop"
_REPLICAS: Final = 3


@dataclass(slots=True)
class Demo:
    """State that the steps share."""

    handle: Handle
    control_planes: ControlPlanes
    count: int
    """Number of control planes to create."""
    tenants: dict[str, Tenant] = field(default_factory=dict)

    async def each(self, action: Callable[[Tenant], Awaitable[None]]) -> None:
        """Run an action for all tenants concurrently."""
        async with asyncio.TaskGroup() as group:
            for name, tenant in self.tenants.items():
                group.create_task(_awaited(action(tenant)), name=name)


@dataclass(frozen=True, slots=True)
class Step:
    """Step and its title."""

    title: str
    run: Callable[[Demo, Proof], Awaitable[None]]


async def _awaited(what: Awaitable[None]) -> None:
    await what


def _examples(*names: str) -> str:
    return "\n---\n".join((EXAMPLES / name).read_text() for name in names)


async def create(demo: Demo, proof: Proof) -> None:
    """Create control planes that sleep, and show their cost."""
    await demo.handle.kubectl.apply(_examples("class.yaml", "on-demand.yaml"))
    names = [*_TENANTS, _NEIGHBOUR, *(f"tenant-{number:03}" for number in range(1, demo.count - LEAST + 2))]
    before = Cost.of(demo.handle)
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def create_one(name: str) -> None:
        async with at_once:
            await demo.control_planes.create(name, class_name=_ON_DEMAND)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(create_one(name), name=f"create {name}")
    await _wait_asleep(demo, names)
    # The API server of their template ends a little later.
    await wait_for(
        "control planes without a process", lambda: _processes(demo), lambda found: not found, poll_seconds=SOON
    )
    cost = Cost.of(demo.handle) - before
    proof.show(
        f"{demo.count} control planes are Ready, and sleep until a request arrives",
        f"no process of their own, {cost.memory_mib / demo.count:.1f} MiB of memory each; "
        f"{cost.processor_seconds:.1f} s of processor time for all",
    )


async def _wait_asleep(demo: Demo, names: Sequence[str], *, timeout_seconds: float = 480.0) -> None:
    pending = set(names)
    try:
        async with asyncio.timeout(timeout_seconds), contextlib.aclosing(demo.control_planes.watch()) as changes:
            async for change in changes:
                if asleep(change.object) and ready(change.object):
                    pending.discard(change.object.name)
                if not pending:
                    return
    except TimeoutError:
        raise DemoFailed(
            f"failed to create {len(names)} control planes: {len(pending)} are not Ready and asleep after "
            f"{timeout_seconds:.0f} s, such as {min(pending)}; see `kubectl describe controlplane {min(pending)}`"
        ) from None


async def _processes(demo: Demo) -> list[int]:
    return find_processes(demo.handle.operator_directory)


async def wake(demo: Demo, proof: Proof) -> None:
    """Send a request to each of three sleeping control planes."""
    demo.tenants = {name: await Tenant.open(demo.handle, demo.control_planes, name) for name in _TENANTS}
    seconds: list[float] = []

    async def ask(tenant: Tenant) -> None:
        seconds.append(await tenant.ask())

    await demo.each(ask)
    for name in _TENANTS:
        await demo.control_planes.wait(name, awake)
    phases = Counter(control_plane.status.phase for control_plane in await demo.control_planes.list())
    sleeping, others = phases[ControlPlanePhase.HIBERNATED], demo.count - len(_TENANTS)
    if sleeping != others:
        raise DemoFailed(f"failed to wake no others than {_listed(_TENANTS)}: {sleeping} of {others} still sleep")
    proof.show(
        f"One request each wakes {_listed(_TENANTS)}: answers after {_range(seconds)} s",
        f"asked at {demo.handle.gateway_url}/clusters/NAME/control-plane; {sleeping} others still sleep",
    )


async def serve_versions(demo: Demo, proof: Proof) -> None:
    """Install two versions of the same CRD in two control planes, and none in the third."""
    kinds = {STAYS: EARLIER, MOVED: LATER}

    async def install(tenant: Tenant) -> None:
        if kind := kinds.get(tenant.name):
            await tenant.install(kind)

    async def refuse(tenant: Tenant) -> None:
        foreign = [kind for name, kind in kinds.items() if name != tenant.name]
        for kind in foreign:
            await tenant.refuses(kind)

    await demo.each(install)
    await demo.each(refuse)
    proof.show(
        f"{STAYS} and {MOVED} install two versions of one CRD, and each serves its own",
        f"both as cluster-admin, CRD {EARLIER.crd}:",
        *(f"  {name:<7} {kind.api_version:<25} requires {_required(kind.properties)}" for name, kind in kinds.items()),
    )


def _required(properties: Mapping[str, object]) -> str:
    return _listed([f"spec.{name}" for name in properties])


async def outlive_mcm(demo: Demo, proof: Proof) -> None:
    """Kill mcm. Verify that APIs answer during its absence, and that controllers work after its return."""
    for name in _TENANTS:
        await _instance(demo, name, lambda pid: pid is not None)
    caller = Caller(tenant.config for tenant in demo.tenants.values())
    manifest = _examples("deployment.yaml")

    async def deploy(tenant: Tenant) -> None:
        await tenant.kubectl.apply(manifest)

    async with caller.calling():
        begun = time.monotonic()
        os.kill(mcm_process(demo.handle), signal.SIGKILL)
        await wait_for("the end of all instances", lambda: instances(demo.handle), _is_empty, poll_seconds=SOON)
        await demo.each(deploy)
        await wait_for("mcm", lambda: _is_ready(demo.handle), bool, poll_seconds=SOON)
        away = time.monotonic() - begun
    caller.verify()
    back = time.monotonic()
    await demo.each(lambda tenant: tenant.wait_pods(namespace=_NAMESPACE, replicas=_REPLICAS))
    proof.show(
        f"mcm is killed (kill -9): {caller.answered} of {caller.answered} requests to the three APIs are answered",
        f"back after {away:.1f} s; a Deployment made after the kill has its {_REPLICAS} Pods in each "
        f"{time.monotonic() - back:.1f} s later",
    )


def _is_empty(found: Sequence[int]) -> bool:
    return not found


async def _is_ready(handle: Handle) -> bool:
    """Return whether `/readyz` of mcm is 200."""
    timeout = aiohttp.ClientTimeout(total=5.0)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{handle.mcm_url}/readyz") as answer:
            return answer.status == HTTPStatus.OK
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def destroy(demo: Demo, proof: Proof) -> None:
    """Delete a control plane. Verify that its keys are gone, and that the keys of the others are unchanged."""
    etcd = demo.handle.tenants_etcd
    victim = demo.tenants.pop(DESTROYED)
    neighbour = (await demo.control_planes.get(_NEIGHBOUR)).status.cluster_path or _NEIGHBOUR
    others = {_NEIGHBOUR: neighbour} | {name: tenant.cluster_path for name, tenant in demo.tenants.items()}
    keys = await count_keys(etcd, victim.cluster_path)
    if not keys:
        raise DemoFailed(
            f"failed to verify the deletion of {victim.name}: /clusters/{victim.cluster_path}/ held no keys before it"
        )
    before = await _at_rest(demo, others)
    if empty := sorted(name for name, digests in before.items() if not digests):
        raise DemoFailed(f"failed to compare the neighbours of {victim.name}: {_listed(empty)} held no keys before")
    await demo.control_planes.delete(victim.name, wait=True, timeout_seconds=120.0)
    if remaining := await count_keys(etcd, victim.cluster_path):
        raise DemoFailed(
            f"failed to destroy {victim.name}: {remaining} of its {keys} keys are still in the shared etcd"
        )
    for name, path in others.items():
        if changed := difference(before[name], await stored(etcd, path)):
            raise DemoFailed(f"failed to keep {name} apart: destroying {victim.name} changed keys {changed[:10]}")
    total = sum(len(keys) for keys in before.values())
    proof.show(
        f"{victim.name} is deleted: {keys} keys → 0, neighbours untouched",
        f"all {total} keys of {_listed(list(others))} are as before (names, values, revisions)",
    )


async def _at_rest(demo: Demo, paths: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    """Return the keys of these control planes after two equal readings in a row."""
    seen: list[dict[str, Mapping[str, str]]] = [{}]

    async def take() -> list[str]:
        seen.append({name: await stored(demo.handle.tenants_etcd, path) for name, path in paths.items()})
        earlier, now = seen[-2:]
        return [key for name in paths for key in difference(earlier.get(name, {}), now[name])]

    await wait_for("the other control planes at rest", take, lambda changed: not changed)
    return seen[-1]


async def move(demo: Demo, proof: Proof) -> None:
    """Move a control plane with data to an etcd of its own while clients write. Verify that no write was lost."""
    tenant = demo.tenants[MOVED]
    old = await _instance(demo, MOVED, lambda pid: pid is not None)
    async with Ledger(tenant.config) as ledger:
        await ledger.fill(_OBJECTS)
        async with ledger.writing():
            begun = time.monotonic()
            await demo.control_planes.move(MOVED, mode=ControlPlaneMode.DEDICATED)
            control_plane = await demo.control_planes.wait(
                MOVED, lambda each: _moved(each) is not None, timeout_seconds=180.0
            )
            seconds = time.monotonic() - begun
        await ledger.verify(MOVED)
    if (migration := _moved(control_plane)) is None or control_plane.home.mode is not ControlPlaneMode.DEDICATED:
        raise DemoFailed(f"failed to move {MOVED}: it lives in {control_plane.home}, not in an etcd of its own")
    if not migration.keys:
        raise DemoFailed(f"failed to move {MOVED}: no keys were written in its new home")
    await _follow(demo, tenant, old=old)
    proof.show(
        f"{MOVED} moves to its own etcd while clients write: {migration.keys} keys there after {seconds:.1f} s",
        f"{ledger.acknowledged} writes acknowledged meanwhile, lost 0, errors 0; "
        f"held {migration.hold_milliseconds} ms, slowest {ledger.slowest_seconds:.1f} s",
        "address and kubeconfig stay; controllers ended in the old home before they began in the new",
    )


def _moved(control_plane: ControlPlane) -> MigrationStatus | None:
    """Return the migration after its cut, with the time that writes waited; None before."""
    migration = control_plane.status.migration
    if migration is None or migration.step is None or migration.hold_milliseconds is None:
        return None
    return migration if migration.step.is_cut else None


async def _follow(demo: Demo, tenant: Tenant, *, old: int | None) -> None:
    """Verify that the controllers have ended at the former home, and act on a change at the new home."""
    new = await _instance(demo, tenant.name, lambda pid: pid is not None and pid != old)
    if old in find_processes(demo.handle.directory):
        raise DemoFailed(f"failed to move {tenant.name}: instance {new} has started, and instance {old} still runs")
    await tenant.kubectl.run("scale", "deployment", "web", "-n", _NAMESPACE, f"--replicas={_REPLICAS + 1}")
    await tenant.wait_pods(namespace=_NAMESPACE, replicas=_REPLICAS + 1)


async def _instance(demo: Demo, name: str, accept: Callable[[int | None], bool]) -> int | None:
    return await wait_for(f"instance of {name}", lambda: instance_of(demo.handle, name), accept, poll_seconds=SOON)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _range(seconds: Sequence[float]) -> str:
    least, most = f"{min(seconds):.1f}", f"{max(seconds):.1f}"
    return least if least == most else f"{least} to {most}"


STEPS: Final = (
    Step("Create control planes that sleep until a request arrives", create),
    Step(f"Wake {_listed(_TENANTS)} by one request each", wake),
    Step(f"Install two versions of one CRD in {STAYS} and {MOVED}", serve_versions),
    Step("Kill mcm while clients call the APIs", outlive_mcm),
    Step(f"Delete {DESTROYED}, and compare the keys of its neighbours", destroy),
    Step(f"Move {MOVED} to an etcd of its own while clients write", move),
)
