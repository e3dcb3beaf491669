"""The steps of the demo. Each makes one change, verifies it and notes the result, or raises `DemoFailed`."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kplane.api import ControlPlane, ControlPlaneMode, MigrationStep
from kplane.cli.demo.cost import Cost
from kplane.cli.demo.instances import instance_of
from kplane.cli.demo.ledger import Ledger
from kplane.cli.demo.store import count_keys, difference, stored
from kplane.cli.demo.tenant import Tenant
from kplane.cli.demo.waiting import wait_for
from kplane.cli.errors import DemoFailed
from kplane.embedded.handle import Handle
from kplane.provider import ClusterConfig
from kplane.workloads import find_processes

__all__ = ["EXAMPLES", "STEPS", "Demo", "Step"]

EXAMPLES: Final = Path(__file__).parent / "manifests"

_ASLEEP: Final = 200
_HIBERNATED: Final = "Hibernated"
_NAMES: Final = ("acme", "acme-dev", "globex")
"""Of the control planes that sleep at first, those that the demo uses."""
_SHOWN: Final = (*_NAMES, "tenant-001", "tenant-002")
_DESTROYED: Final = "acme"
"""The beginning of another name: a prefix without its slash would destroy both."""
_MOVED: Final = "globex"
_OBJECTS: Final = 500
"""Written before the move, so that there are data to move."""
_DEDICATED: Final = json.dumps({"spec": {"mode": ControlPlaneMode.DEDICATED}})
_NAMESPACE: Final = "shop"
_REPLICAS: Final = 3


@dataclass(slots=True)
class Demo:
    """Holds what the steps share."""

    handle: Handle
    note: Callable[[str], None]
    tenants: dict[str, Tenant] = field(default_factory=dict)

    async def each(self, action: Callable[[Tenant], Awaitable[str]]) -> None:
        """Run an action for all tenants at the same time, and note its results in order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(action(tenant)), name=name) for name, tenant in self.tenants.items()]
        for task in tasks:
            self.note(task.result())


@dataclass(frozen=True, slots=True)
class Step:
    """Pairs a step with its title."""

    title: str
    run: Callable[[Demo], Awaitable[None]]


async def _awaited(what: Awaitable[str]) -> str:
    return await what


def _example(name: str) -> str:
    return (EXAMPLES / name).read_text()


async def create(demo: Demo) -> None:
    """Create control planes that sleep, and tell what they cost."""
    for name in ("class.yaml", "on-demand.yaml"):
        demo.note((await demo.handle.kubectl.apply(_example(name))).strip())
    before, begun = Cost.of(demo.handle), time.monotonic()
    await demo.handle.kubectl.run("create", "-f", "-", stdin=_control_planes())
    await wait_for(
        f"{_ASLEEP} control planes Ready and asleep",
        lambda: _phases(demo),
        lambda found: found == {_HIBERNATED: _ASLEEP},
        timeout_seconds=480,
    )
    seconds, cost = time.monotonic() - begun, Cost.of(demo.handle) - before
    # The API server of their template ends a little later.
    await wait_for("control planes without a process", lambda: _processes(demo), lambda found: not found)
    demo.note(
        f"{_ASLEEP} control planes Ready after {seconds:.1f} s, without a process of their own: "
        f"{cost.processor_seconds:.1f} s of processor time, {cost.memory_mib / _ASLEEP:.2f} MiB of memory each"
    )


def _control_planes() -> str:
    others = [f"tenant-{number:03}" for number in range(1, _ASLEEP - len(_NAMES) + 1)]
    items = [
        {
            "apiVersion": ControlPlane.resource.api_version,
            "kind": ControlPlane.resource.kind,
            "metadata": {"name": name},
            "spec": {"classRef": {"name": "on-demand"}},
        }
        for name in (*_NAMES, *others)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


async def _phases(demo: Demo) -> Mapping[str, int]:
    """Count the phases of the control planes that are Ready."""
    found = await demo.handle.kubectl.items("controlplanes")
    return Counter(each["status"]["phase"] for each in found if _is_ready(each))


async def _processes(demo: Demo) -> list[int]:
    return find_processes(demo.handle.operator_directory)


async def talk(demo: Demo) -> None:
    """Ask control planes that sleep, and wait until their controllers run."""
    demo.tenants = {name: await Tenant.open(demo.handle, name) for name in _NAMES}
    await demo.each(lambda tenant: tenant.ask())
    async with asyncio.TaskGroup() as group:
        for name in _NAMES:
            group.create_task(_wait_registered(demo, name), name=f"wait for registration {name}")
    demo.note(f"$ kubectl get controlplanes {' '.join(_SHOWN)}")
    demo.note((await demo.handle.kubectl.run("get", "controlplanes", *_SHOWN)).rstrip())


async def _wait_registered(demo: Demo, name: str) -> None:
    await wait_for(
        f"registration {name} ready",
        lambda: demo.handle.kubectl.get("controlplaneregistration", name),
        lambda found: found.get("status", {}).get("ready") is True,
    )


def _is_ready(found: Mapping[str, Any]) -> bool:
    generation = found["metadata"]["generation"]
    conditions = found.get("status", {}).get("conditions", [])
    return any(
        each["type"] == "Ready" and each["status"] == "True" and each.get("observedGeneration") == generation
        for each in conditions
    )


async def deploy(demo: Demo) -> None:
    """Create a Deployment in each control plane with the published kubeconfig, and wait for its Pods."""
    manifest = _example("deployment.yaml")

    async def deploy_into(tenant: Tenant) -> str:
        await tenant.apply_deployment(manifest)
        return await tenant.wait_pods(namespace=_NAMESPACE, replicas=_REPLICAS)

    await demo.each(deploy_into)


async def check_namespaces(demo: Demo) -> None:
    """Show the objects that the controllers put into each new namespace."""
    await demo.each(lambda tenant: tenant.check_namespace(_NAMESPACE))


async def delete_namespaces(demo: Demo) -> None:
    """Delete a namespace in each control plane."""
    await demo.each(lambda tenant: tenant.delete_namespace("temporary"))


async def destroy(demo: Demo) -> None:
    """Delete one control plane. Verify that its data are gone, and that the data of the others are unchanged."""
    etcd = demo.handle.tenants_etcd
    victim = demo.tenants.pop(_DESTROYED)
    others = [tenant.cluster_path for tenant in demo.tenants.values()]
    keys = await count_keys(etcd, victim.cluster_path)
    if not keys:
        raise DemoFailed(
            f"failed to verify the deletion of {victim.name}: /clusters/{victim.cluster_path}/ held no keys before it"
        )
    before = await _settled(demo, others)
    await demo.handle.kubectl.run("delete", "controlplane", victim.name, "--wait=true", "--timeout=120s")
    left = await count_keys(etcd, victim.cluster_path)
    if left:
        raise DemoFailed(f"failed to destroy {victim.name}: {left} of its {keys} keys are still in the shared etcd")
    demo.note(f"{victim.name}: {keys} keys before, 0 after")
    for path in others:
        if changed := difference(before[path], await stored(etcd, path)):
            raise DemoFailed(f"failed to keep {path} apart: destroying {victim.name} changed keys {changed[:10]}")
        demo.note(f"{path}: all {len(before[path])} keys unchanged (keys, values and revisions compared)")


async def _settled(demo: Demo, paths: list[str]) -> dict[str, Mapping[str, str]]:
    """Read the keys of these control planes when two readings in a row are equal."""
    seen: list[dict[str, Mapping[str, str]]] = [{}]

    async def take() -> list[str]:
        seen.append({path: await stored(demo.handle.tenants_etcd, path) for path in paths})
        earlier, now = seen[-2:]
        return [key for path in paths for key in difference(earlier.get(path, {}), now[path])]

    await wait_for("the other control planes at rest", take, lambda changed: not changed)
    return seen[-1]


async def move(demo: Demo) -> None:
    """Move a control plane with data to an etcd of its own while clients write, and verify that nothing was lost."""
    tenant = demo.tenants[_MOVED]
    old = await wait_for(f"instance of {_MOVED}", lambda: instance_of(demo.handle, _MOVED), lambda pid: pid is not None)
    async with Ledger(ClusterConfig.load(tenant.kubectl.kubeconfig)) as ledger:
        await ledger.fill(_OBJECTS)
        async with ledger.writing():
            begun = time.monotonic()
            await demo.handle.kubectl.run("patch", "controlplane", _MOVED, "--type=merge", f"--patch={_DEDICATED}")
            migration = await wait_for(f"{_MOVED} in its new home", lambda: _migration(demo), _is_moved)
            seconds = time.monotonic() - begun
        await ledger.verify(_MOVED)
    demo.note(
        f"{_MOVED}: {migration['keys']} keys written to an etcd of its own, moved in {seconds:.1f} s; "
        "the address and the kubeconfig are the same"
    )
    demo.note(
        f"{_MOVED}: {ledger.acknowledged} writes acknowledged during the move, lost 0, errors 0; "
        f"writes were held for {migration['holdMilliseconds']} ms, the slowest took {ledger.slowest_seconds:.1f} s"
    )
    await _follow(demo, tenant, old=old)


async def _migration(demo: Demo) -> dict[str, Any]:
    """Read where the migration is."""
    found: dict[str, Any] = (await demo.handle.kubectl.get("controlplane", _MOVED))["status"].get("migration", {})
    return found


def _is_moved(migration: Mapping[str, Any]) -> bool:
    """Tell whether the control plane lives in its new home, and the operator has said how long writes waited."""
    return "holdMilliseconds" in migration and MigrationStep(migration["step"]).is_cut


async def _follow(demo: Demo, tenant: Tenant, *, old: int | None) -> None:
    """Verify that the controllers have ended at the former home, and act on a change at the new one."""
    new = await wait_for(
        f"new instance of {_MOVED}",
        lambda: instance_of(demo.handle, _MOVED),
        lambda pid: pid is not None and pid != old,
    )
    if old in find_processes(demo.handle.directory):
        raise DemoFailed(f"failed to move {_MOVED}: instance {new} has started, and instance {old} still runs")
    demo.note(f"{_MOVED}: instance {old} ended at the former home, instance {new} runs at the new one")
    await tenant.kubectl.run("scale", "deployment", "web", "-n", _NAMESPACE, f"--replicas={_REPLICAS + 1}")
    demo.note(await tenant.wait_pods(namespace=_NAMESPACE, replicas=_REPLICAS + 1))


STEPS: Final = (
    Step(f"Create {_ASLEEP} control planes that sleep until they are used", create),
    Step(f"Talk to {', '.join(_NAMES)} through the gateway, which wakes them", talk),
    Step("Deploy 3 replicas into each with its published kubeconfig", deploy),
    Step("Find what the controllers put into each namespace", check_namespaces),
    Step("Delete a namespace in each", delete_namespaces),
    Step(f"Destroy control plane {_DESTROYED}", destroy),
    Step(f"Move {_MOVED} with its data to an etcd of its own, while clients write", move),
)
