"""Whatever users and faults do, and in which order: what comes of it is what a fresh operator makes of what is left.

Fresh is an operator that finds everything as it is, and has nothing to do; and fresh is one that finds nothing but what
users want in the end, and makes the same of it.

The operator runs on a real management cluster. Its control planes are that cluster itself, reached through an Envoy
that serves it below every tenant's path, so that examples take seconds. What it sends is counted, and some of it gets
lost, is refused, or is the last thing that the operator did.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import difflib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from api.names import ALLOW_ENDPOINT_LABEL
from benchmarks.surroundings import free_port, shared_address
from controlplane_operator import control_plane_registration, external, fanout
from controlplane_operator.backoff import Backoff
from controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from controlplane_operator.operator import run_operator
from controlplane_operator.settings import Settings
from embedded.handle import Handle
from provider import NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS, Client, ClusterConfig, Invalid, NotFound, Unreachable
from provider.calls import Calls

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

KINDS = {
    "control plane": CONTROL_PLANES,
    "class": CONTROL_PLANE_CLASSES,
    "endpoint": CONTROL_PLANE_ENDPOINTS,
    "registration": CONTROL_PLANE_REGISTRATIONS,
}
QUIET_SECONDS = 1.5
SETTLED_SECONDS = 90.0

Step = tuple[Any, ...]


@dataclass
class Fate:
    """What becomes of the writes of one life of the operator."""

    plan: deque[str] = field(default_factory=deque)
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    wrote_at: float = 0.0

    async def decide(self, send: Any, *, writes: bool, in_tenant: bool) -> Any:
        if self.dead.is_set():
            await asyncio.Event().wait()
        if not writes:
            return await send()
        if not in_tenant:
            # There the same is applied again and again where something is amiss, as when a role does not exist.
            self.wrote_at = asyncio.get_running_loop().time()
        fault = self.plan.popleft() if self.plan else "none"
        if fault == "refused":
            raise Unreachable("the test lets nothing through", kind="connect")
        if fault == "killed before":
            self.dead.set()
            await asyncio.Event().wait()
        answer = await send()
        if fault == "killed after":
            self.dead.set()
            await asyncio.Event().wait()
        if fault == "lost":
            raise Unreachable("the test loses the answer", kind="connect")
        return answer


_fate: contextvars.ContextVar[Fate | None] = contextvars.ContextVar("fate", default=None)


@dataclass
class World:
    """One example's objects, and the operator that looks after them."""

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
        """Begin a life of the operator: it knows nothing but what is written down."""
        self.fate, self._stop = Fate(plan=self.fate.plan), asyncio.Event()
        self.fate.wrote_at = asyncio.get_running_loop().time()
        operator_settings = Settings(
            kubeconfig=self.handle.operator_kubeconfig,
            state_directory=self.state,
            program_directories=self.handle.programs,
            listen_host="127.0.0.1",
            listen_port=free_port(),
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
        """Return when the operator has seen what was done, and not written for a while; a dead one is started again."""
        now = asyncio.get_running_loop().time
        self.marked += 1
        while not await self._has_seen(self.marked) or now() - self.fate.wrote_at < QUIET_SECONDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.fate.dead.wait(), QUIET_SECONDS / 5)
                await self.restart()

    async def _has_seen(self, mark: int) -> bool:
        """Tell whether the operator has looked at an object of each kind that is made, or changed, for that."""
        deletion = ("Retain", "Destroy")[mark % 2]
        specs: dict[str, dict[str, Any]] = {
            "class": {"deletionPolicy": deletion},
            "endpoint": {"endpoint": f"https://127.0.0.1:{8 + mark % 2}"},
            "control plane": {"endpointRef": {"name": "none"}, "mode": "Dedicated", "deletionPolicy": deletion},
            "registration": {"controlPlaneRef": {"name": "none"}, "services": ["Controllers"][: mark % 2]},
        }
        for kind, spec in specs.items():
            body = {"metadata": {"name": self._mark}, "spec": spec}
            obj = await self.client.apply(KINDS[kind], body, field_manager="marker")
            conditions = obj.get("status", {}).get("conditions", [{}])
            if conditions[0].get("observedGeneration") != obj["metadata"]["generation"]:
                return False
        return True

    @property
    def _mark(self) -> str:
        return f"mark-{self.prefix}"[:-1]

    async def settled(self) -> dict[str, Any]:
        """Return what there is once everything is done that can be, and nobody waits for a deletion any more."""
        self.fate.plan.clear()
        async with asyncio.timeout(SETTLED_SECONDS):
            while True:
                await self.quiet()
                found = await self.snapshot()
                leaving = [name for name, obj in found.items() if obj.get("leaving")]
                if not leaving:
                    return found
                await asyncio.sleep(0.2)

    async def snapshot(self) -> dict[str, Any]:
        """Return everything that concerns this example, without times and without what credentials are made of."""
        found: dict[str, Any] = {}
        present: set[str] = set()
        for kind, resource in KINDS.items():
            for obj in (await self.client.list(resource)).items:
                name = obj["metadata"]["name"]
                if name.startswith(self.prefix):
                    present.add(obj["metadata"]["uid"])
                    found[f"{kind} {name}"] = {
                        "spec": obj["spec"],
                        "status": _without_times(obj.get("status", {})),
                        "finalizers": obj["metadata"].get("finalizers", []),
                        "made by": "operator" if obj["metadata"].get("ownerReferences") else "user",
                        "leaving": _is_leaving(obj, present),
                    }
        for resource in (NAMESPACES, SECRETS, ROLES, ROLE_BINDINGS):
            for obj in (await self.client.list(resource)).items:
                metadata = obj["metadata"]
                where = metadata.get("namespace", metadata["name"])
                if where.startswith(f"kplane-cp-{self.prefix}"):
                    found[f"{resource.kind} {where}/{metadata['name']}"] = {
                        "keys": sorted(obj.get("data", {})),
                        "rules": obj.get("rules"),
                        "leaving": _is_leaving(obj, present),
                    }
        return found

    async def take(self, step: Step) -> None:
        """Do what a user does, or have happen what happens."""
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
                # What the API server refuses, such as an edit of what cannot change, a user has to do without.
                with contextlib.suppress(Invalid):
                    await self.client.apply(KINDS[kind], body, field_manager="user")
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
        """Make what users made in another world, as it was in the end."""
        for kind in ("class", "endpoint", "registration", "control plane"):
            for key, obj in wanted.items():
                if key.startswith(f"{kind} ") and obj["made by"] == "user":
                    body = {"metadata": {"name": key.split()[-1]}, "spec": obj["spec"]}
                    await self.client.apply(KINDS[kind], body, field_manager="user")

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
    """Tell whether an object is on its way out, also by garbage collection that has yet to come by."""
    owners = {owner["uid"] for owner in obj["metadata"].get("ownerReferences", [])}
    return "deletionTimestamp" in obj["metadata"] or (bool(owners) and not owners & present)


def _without_times(status: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for condition in status.get("conditions", [])
    ]
    status = {key: value for key, value in status.items() if key != "credentialsExpireAt"}
    return {**status, "conditions": sorted(conditions, key=lambda each: str(each["type"]))}


def _reference(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.sampled_from(names).map(lambda name: {"name": name})


CLASSES = st.fixed_dictionaries(
    {"deletionPolicy": st.sampled_from(["Retain", "Destroy"])},
    optional={
        "defaultServices": st.sampled_from([[], ["Controllers"]]),
        "auth": st.sampled_from([{"model": "token", "defaultRole": role} for role in ("cluster-admin", "no-such")]),
        "modesAllowed": st.just(["Dedicated"]),
    },
)
ENDPOINTS = st.sampled_from(["", "", "/clusters/@a/control-plane", "/clusters/nobody/control-plane"])
CONTROL_PLANE_SPECS = st.fixed_dictionaries(
    {"endpointRef": _reference("e", "f")},
    optional={"classRef": _reference("c", "d"), "deletionPolicy": st.sampled_from(["Retain", "Destroy"])},
)
REGISTRATION_SPECS = st.fixed_dictionaries(
    {"controlPlaneRef": _reference("a", "b"), "services": st.just(["Controllers"])},
    optional={"endpointRef": _reference("e", "f")},
)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("class"), st.sampled_from("cd"), st.none() | CLASSES),
    st.tuples(st.just("endpoint"), st.sampled_from("ef"), st.none() | ENDPOINTS),
    st.tuples(st.just("control plane"), st.sampled_from("ab"), st.none() | CONTROL_PLANE_SPECS),
    st.tuples(st.just("control plane"), st.sampled_from("ab"), CONTROL_PLANE_SPECS),
    st.tuples(st.just("registration"), st.sampled_from("abr"), st.none() | REGISTRATION_SPECS),
    st.tuples(st.sampled_from(["refused", "lost", "killed before", "killed after"]), st.integers(0, 12)),
    st.sampled_from([("restart",), ("kill",), ("rest",)]),
)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def worlds(
    api_server: Handle, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Iterator[World]]:
    """Worlds for one example each, with waits between tries that are short."""
    directory = tmp_path_factory.mktemp("convergence")
    stack, patches = contextlib.AsyncExitStack(), pytest.MonkeyPatch()
    patient, once = Backoff.next, Calls._once
    management = ClusterConfig.load(api_server.operator_kubeconfig).server

    def hurried(self: Any, key: Any, *, reason: str = "") -> float:
        return min(0.2, patient(self, key, reason=reason))

    async def fated(self: Calls, request: Any, read: Any) -> Any:
        fate = _fate.get()
        if fate is None:
            return await once(self, request, read)
        in_tenant = self._transport.config.server != management
        return await fate.decide(lambda: once(self, request, read), writes=request.method != "GET", in_tenant=in_tenant)

    patches.setattr(Backoff, "next", hurried)
    patches.setattr(Calls, "_once", fated)
    patches.setattr(control_plane_registration, "_RETRY_SECONDS", 0.2)
    patches.setattr(external, "_REVOKE_SECONDS", 1.0)
    patches.setattr(fanout, "_CLASS_SECONDS", 0.2)
    patches.setattr(fanout, "_WORDS_SECONDS", 0.2)

    async def begin() -> tuple[Client, dict[str, Any]]:
        administrator = ClusterConfig.load(api_server.admin_kubeconfig)
        config = await stack.enter_async_context(shared_address(administrator, directory=directory))
        client = await stack.enter_async_context(Client(administrator))
        reference = {"name": "convergence", "namespace": "default"}
        text = json.dumps(config.to_kubeconfig())
        metadata = {**reference, "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
        await client.apply(SECRETS, {"metadata": metadata, "stringData": {"kubeconfig": text}})
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


ALL = [
    ("endpoint", "e", ""),
    ("class", "c", {"deletionPolicy": "Destroy", "defaultServices": ["Controllers"]}),
    ("control plane", "a", {"endpointRef": {"name": "e"}, "classRef": {"name": "c"}}),
]


@example([*ALL, ("rest",), ("class", "c", None), ("kill",), ("control plane", "a", None)])
@example([("killed after", 3), *ALL, ("killed before", 2), ("rest",), ("endpoint", "e", None), ("lost", 0)])
@given(st.lists(STEPS, min_size=3, max_size=14))
@settings(
    max_examples=6,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_every_history_ends_in_what_a_fresh_operator_makes_of_its_end(
    runner: asyncio.Runner, worlds: Iterator[World], steps: list[Step]
) -> None:
    async def play() -> None:
        async with living(next(worlds)) as world:
            for step in steps:
                await world.take(step)
            reached = await world.settled()
            await world.restart()
            fresh = await world.settled()
            difference = "\n".join(difflib.unified_diff(_lines(reached), _lines(fresh), "reached", "fresh", n=4))
            assert not difference, difference
            check(world, reached)
            async with living(next(worlds)) as another:
                wanted = _renamed(reached, world.prefix, another.prefix)
                await another.make(wanted)
                compare(wanted, await another.settled())

    runner.run(play())


def _renamed(found: dict[str, Any], former: str, prefix: str) -> dict[str, Any]:
    return dict(json.loads(json.dumps(found).replace(former, prefix)))


def _lines(found: dict[str, Any]) -> list[str]:
    return json.dumps(found, indent=1, sort_keys=True).splitlines()


def compare(reached: dict[str, Any], anew: dict[str, Any]) -> None:
    """Check that who is ready by a history is so without it, and by the same words, and the other way round.

    What was published once stays where the present wishes would not lead to it, and so does what was remembered of a
    class. So of the others, only the reason counts; and of those, not even that.
    """
    for key, obj in reached.items():
        if not key.startswith(("control plane ", "registration ")) or obj["made by"] == "operator":
            continue
        one, other = obj["status"], anew[key]["status"]
        if "ClassFound" in {condition["type"] for condition in one["conditions"]}:
            continue
        assert _ready(one) == _ready(other), (key, one, other)
        if _ready(one)[0] == "True":
            assert _undated(one) == _undated(other), key
            for secret in (key for key in reached if key.startswith(f"Secret kplane-cp-{key.split()[-1]}/")):
                assert reached[secret] == anew[secret]


def _ready(status: dict[str, Any]) -> tuple[str, str]:
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    return ready["status"], ready["reason"]


def _undated(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status without the generations that it is about."""
    conditions = [{**condition, "observedGeneration": 0} for condition in status["conditions"]]
    return {**status, "conditions": conditions, "observedGeneration": 0, "controlPlaneUID": ""}


def check(world: World, reached: dict[str, Any]) -> None:
    """Check that nothing is left of what is gone, and nothing is missing of what is published."""
    control_planes = {
        key.removeprefix("control plane "): obj for key, obj in reached.items() if key.startswith("control plane ")
    }
    homes = {key.split("/")[1] for key in reached if key.startswith("Namespace ")}
    assert homes <= {f"kplane-cp-{name}" for name in control_planes}
    for name, obj in control_planes.items():
        if "endpoint" in obj["status"]:
            for suffix in ("kubeconfig", "controllers"):
                assert reached[f"Secret kplane-cp-{name}/controlplane-{name}-{suffix}"]["keys"]
    registrations = [obj for key, obj in reached.items() if key.startswith("registration ")]
    for kind in ("Role", "RoleBinding"):
        granted = [key for key in reached if key.startswith(f"{kind} ")]
        assert len(granted) == sum(obj["status"]["ready"] for obj in registrations)
    for obj in registrations:
        name = obj["spec"]["controlPlaneRef"]["name"]
        if obj["status"]["ready"]:
            assert obj["status"]["controlPlaneUID"], name
            assert "endpoint" in control_planes[name]["status"], name
