"""Worlds: the objects of an example on a real management cluster, and an operator whose requests meet faults."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.surroundings import free_port, open_namespace, shared_address
from kplane.api.configuration import HostPort
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.controlplane_operator.app import run_operator
from kplane.controlplane_operator.backends import adopted as external
from kplane.controlplane_operator.classes import watches as class_watches
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.controlplanes import watches as control_plane_watches
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.registrations import reconciler as control_plane_registration
from kplane.controlplane_operator.registrations import resolution
from kplane.controlplane_operator.registrations import watches as registration_watches
from kplane.controlplane_operator.watch.backoff import KeyedBackoff
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Invalid, NotFound, Unreachable
from kplane.provider.client.calls import Calls
from kplane.provider.client.resources import NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS

KINDS = {
    "control plane": CONTROL_PLANES,
    "class": CONTROL_PLANE_CLASSES,
    "endpoint": CONTROL_PLANE_ENDPOINTS,
    "registration": CONTROL_PLANE_REGISTRATIONS,
}
QUIET_SECONDS = 1.5
SETTLED_SECONDS = 300.0

Step = tuple[Any, ...]


@dataclass
class Fate:
    """Faults of the writes of one run of the operator."""

    plan: deque[str] = field(default_factory=deque)
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    wrote_at: float = 0.0

    async def decide(self, send: Any, *, writes: bool, in_tenant: bool) -> Any:
        if self.dead.is_set():
            await asyncio.Event().wait()
        if not writes:
            return await send()
        if not in_tenant:
            # Writes in tenants repeat as long as they fail, for example if a role does not exist.
            self.wrote_at = asyncio.get_running_loop().time()
        fault = self.plan.popleft() if self.plan else "none"
        if fault == "refused":
            raise Unreachable("the test lets nothing through", kind="connect")
        if fault == "killed before":
            self.dead.set()
            await asyncio.Event().wait()
        answer = await send()
        if not in_tenant:
            self.wrote_at = asyncio.get_running_loop().time()
        if fault == "killed after":
            self.dead.set()
            await asyncio.Event().wait()
        if fault == "lost":
            raise Unreachable("the test loses the answer", kind="connect")
        return answer


_fate: contextvars.ContextVar[Fate | None] = contextvars.ContextVar("fate", default=None)


@dataclass
class World:
    """The objects of an example, and the operator that reconciles them."""

    client: Client
    handle: Handle
    state: Path
    tenants: dict[str, Any]
    prefix: str
    fate: Fate = field(default_factory=Fate)
    marked: int = 0
    _running: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Start a run of the operator, which knows the stored state only."""
        self.fate, self._stop = Fate(plan=self.fate.plan), asyncio.Event()
        self.fate.wrote_at = asyncio.get_running_loop().time()
        operator_settings = OperatorConfig(
            kubeconfig=self.handle.operator_kubeconfig,
            state_dir=self.state,
            programs_dir=self.handle.programs,
            listen=HostPort("127.0.0.1", free_port()),
            leader_elect_lease_seconds=30,
            leader_elect_renew_deadline_seconds=25,
        )
        context = contextvars.copy_context()
        context.run(_fate.set, self.fate)
        self._running = asyncio.get_running_loop().create_task(
            run_operator(operator_settings, stop=self._stop), context=context
        )

    async def end(self, *, killed: bool = False) -> None:
        if self._running is not None:
            if killed:
                self.fate.dead.set()
            self._stop.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    async def restart(self, *, killed: bool = False) -> None:
        await self.end(killed=killed)
        await self.start()

    async def quiet(self) -> None:
        """Wait until the operator has seen all changes and paused its writes; restart the operator after a crash."""
        now = asyncio.get_running_loop().time
        self.marked += 1
        while not await self._has_seen(self.marked) or now() - self.fate.wrote_at < QUIET_SECONDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.fate.dead.wait(), QUIET_SECONDS / 5)
                await self.restart()

    async def _has_seen(self, mark: int) -> bool:
        """Return whether the operator has reconciled a marker object of each kind, created or changed here."""
        deletion = ("Retain", "Destroy")[mark % 2]
        specs: dict[str, dict[str, Any]] = {
            "class": {"deletionPolicy": deletion},
            "endpoint": {"endpoint": f"https://127.0.0.1:{8 + mark % 2}"},
            "control plane": {"endpointRef": {"name": "none"}, "mode": "Dedicated", "deletionPolicy": deletion},
            "registration": {"controlPlaneRef": {"name": "none"}, "services": ["Controllers"][: mark % 2]},
        }
        for kind, spec in specs.items():
            body = {"metadata": {"name": self._mark}, "spec": spec}
            obj = await self.client.apply(KINDS[kind], body, field_manager="marker", force=True)
            conditions = obj.get("status", {}).get("conditions", [{}])
            if conditions[0].get("observedGeneration") != obj["metadata"]["generation"]:
                return False
        return True

    @property
    def _mark(self) -> str:
        return f"mark-{self.prefix}"[:-1]

    async def settled(self) -> dict[str, Any]:
        """Return a snapshot after the operator has finished its work and all deletions are complete."""
        self.fate.plan.clear()
        async with asyncio.timeout(SETTLED_SECONDS):
            while True:
                await self.quiet()
                objects = await self.snapshot()
                leaving = [name for name, obj in objects.items() if obj.get("leaving")]
                if not leaving:
                    return objects
                await asyncio.sleep(0.2)

    async def snapshot(self) -> dict[str, Any]:
        """Return all objects of this example, without times and without the content of credentials."""
        objects: dict[str, Any] = {}
        present: set[str] = set()
        for kind, resource in KINDS.items():
            for obj in (await self.client.list(resource)).items:
                name = obj["metadata"]["name"]
                if name.startswith(self.prefix):
                    present.add(obj["metadata"]["uid"])
                    objects[f"{kind} {name}"] = {
                        "spec": obj["spec"],
                        "status": _without_times(obj.get("status", {})),
                        "finalizers": obj["metadata"].get("finalizers", []),
                        "made by": "operator" if obj["metadata"].get("ownerReferences") else "user",
                        "leaving": _is_leaving(obj, present),
                    }
        for resource in (NAMESPACES, SECRETS, ROLES, ROLE_BINDINGS):
            for obj in (await self.client.list(resource)).items:
                metadata = obj["metadata"]
                namespace = metadata.get("namespace", metadata["name"])
                if namespace.startswith(f"kplane-cp-{self.prefix}"):
                    objects[f"{resource.kind} {namespace}/{metadata['name']}"] = {
                        "keys": sorted(obj.get("data", {})),
                        "rules": obj.get("rules"),
                        "leaving": _is_leaving(obj, present),
                    }
        return objects

    async def take(self, step: Step) -> None:
        """Perform a step: an action of a user, or a fault."""
        match step:
            case (("refused" | "lost" | "killed before" | "killed after") as fault, int(after)):
                self.fate.plan.extend([*["none"] * after, fault])
            case ("restart",):
                await self.restart()
            case ("kill",):
                await self.restart(killed=True)
            case ("rest",):
                await self.quiet()
            case (kind, str(name), None):
                with contextlib.suppress(NotFound):
                    await self.client.delete(KINDS[kind], self.prefix + name)
            case (kind, str(name), spec):
                body = {"metadata": {"name": self.prefix + name}, "spec": self._spec(kind, spec)}
                # A change that the API server refuses, such as an edit of an immutable field, has no effect.
                with contextlib.suppress(Invalid):
                    await self.client.apply(KINDS[kind], body, field_manager="user", force=True)
            case _:
                raise AssertionError(step)
        if self.fate.dead.is_set():
            await self.restart()

    def _spec(self, kind: str, spec: Any) -> dict[str, Any]:
        if kind == "endpoint":
            return {**self.tenants, "endpoint": self.tenants["endpoint"] + spec.replace("@", self.prefix)}
        return {
            key: {**value, "name": self.prefix + value["name"]} if key.endswith("Ref") else value
            for key, value in spec.items()
        }

    async def make(self, wanted: dict[str, Any]) -> None:
        """Create the objects that users made in another world, in their final state."""
        for kind in ("class", "endpoint", "registration", "control plane"):
            for key, obj in wanted.items():
                if key.startswith(f"{kind} ") and obj["made by"] == "user":
                    body = {"metadata": {"name": key.split()[-1]}, "spec": obj["spec"]}
                    await self.client.apply(KINDS[kind], body, field_manager="user", force=True)

    async def clean(self) -> None:
        for kind in ("registration", "control plane", "class", "endpoint"):
            for obj in (await self.client.list(KINDS[kind])).items:
                if obj["metadata"]["name"].startswith(self.prefix):
                    with contextlib.suppress(NotFound):
                        await self.client.delete(KINDS[kind], obj["metadata"]["name"])
            if kind == "control plane":
                await self.settled()
        for resource in KINDS.values():
            await self.client.delete(resource, self._mark)


def _is_leaving(obj: dict[str, Any], present: set[str]) -> bool:
    """Return whether an object is being deleted, or will be deleted by garbage collection."""
    owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])}
    return "deletionTimestamp" in obj["metadata"] or (bool(owners) and not owners & present)


def _without_times(status: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in status.get("conditions", [])
    ]
    status = {key: value for key, value in status.items() if key != "credentialsExpireAt"}
    return {**status, "conditions": sorted(conditions, key=lambda each: str(each["type"]))}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as instance:
        yield instance


@pytest.fixture(scope="module")
def worlds(
    api_server: Handle,
    runner: asyncio.Runner,
    tmp_path_factory: pytest.TempPathFactory,
    namespaces_go_at_once: Any,
) -> Iterator[Iterator[World]]:
    """Yield a world for each example, with short waits between retries."""
    directory = tmp_path_factory.mktemp("convergence")
    stack, patches = contextlib.AsyncExitStack(), pytest.MonkeyPatch()
    next_delay, attempt = KeyedBackoff.next, Calls._attempt
    management = ClusterConfig.load(api_server.operator_kubeconfig).server

    def hurried(self: Any, key: Any, *, reason: str = "") -> float:
        return min(0.2, next_delay(self, key, reason=reason))

    async def fated(self: Calls, request: Any, read: Any, sent: Any) -> Any:
        fate = _fate.get()
        # Leases are exempt from faults: a killed operator leaves its Lease to the next operator of its directory.
        if fate is None or "/leases/" in request.path:
            return await attempt(self, request, read, sent)
        in_tenant = self._transport.config.server != management

        def send() -> Any:
            return attempt(self, request, read, sent)

        return await fate.decide(send, writes=request.method != "GET", in_tenant=in_tenant)

    patches.setattr(KeyedBackoff, "next", hurried)
    patches.setattr(Calls, "_attempt", fated)
    patches.setattr(control_plane_registration, "_RETRY_SECONDS", 0.2)
    patches.setattr(resolution, "_FIRST_WORDS_SECONDS", 0.0)
    patches.setattr(resolution, "_CREATED_SECONDS", 0.0)
    patches.setattr(resolution, "_MADE_SECONDS", 0.0)
    patches.setattr(external, "_REVOKE_SECONDS", 1.0)
    patches.setattr(class_watches, "_MERGE_SECONDS", 0.2)
    for watches in (control_plane_watches, registration_watches):
        patches.setattr(watches, "_WORDS_SECONDS", 0.2)

    async def begin() -> tuple[Client, dict[str, Any]]:
        administrator = ClusterConfig.load(api_server.admin_kubeconfig)
        config = await stack.enter_async_context(shared_address(administrator, directory=directory))
        await stack.enter_async_context(namespaces_go_at_once(administrator))
        client = await stack.enter_async_context(Client(administrator, field_manager="kplane"))
        reference = {"name": "convergence", "namespace": "default"}
        text = json.dumps(config.to_kubeconfig())
        metadata = {**reference, "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
        await open_namespace(client)
        await client.apply(SECRETS, {"metadata": metadata, "stringData": {"kubeconfig": text}}, force=True)
        return client, {"endpoint": config.server, "credentialsSecretRef": reference}

    async def end() -> None:
        await stack.aclose()

    try:
        client, tenants = runner.run(begin())
        yield (
            World(client, api_server, directory / f"operator-{number}", tenants, f"x{number}-")
            for number in itertools.count()
        )
    finally:
        runner.run(end())
        patches.undo()


@contextlib.asynccontextmanager
async def living(world: World) -> AsyncIterator[World]:
    await world.start()
    try:
        yield world
        await world.clean()
    finally:
        await world.end()
