"""Model of the objects of a migration: two homes, a gateway, and operators that can die or be stopped at any call.

Statuses are real, with their resourceVersions and conflicts. All other parts are dictionaries, because a real etcd or
process cannot be killed exactly between two calls of the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from kplane.api import ControlPlane, DeletionPolicy, MigrationPlan
from kplane.controlplane_operator.controlplanes.gateway_replicas import Replica
from kplane.controlplane_operator.controlplanes.migration import cut, migrator, turns
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.cache import Store
from kplane.data import DataLost
from kplane.provider import Conflict, ProviderError

__all__ = ["Home", "Killed", "Operator", "World"]

_LATE = 7
_IDENTITY = "5f0c"
NAME, UID = "mover", "b1946ac9-2f3a-4a3e-8d4c-6a5f0c7b8e11"


class Killed(BaseException):
    """Raised at the call at which the operator dies."""


@dataclass
class Home:
    """A home of data. Clients can write to it while an API server runs and etcd accepts its writes."""

    data: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """Revision of the latest write of each key."""
    revision: int = 0
    exists: bool = False
    runs: bool = False
    may_write: bool = True
    may_read: bool = True
    closed: bool = False
    """Whether copies are forbidden to write to this home."""
    copied: bool = False
    """Whether a copy has written to this home."""
    oldest: int = 0
    """Lowest revision for which etcd still answers lists."""
    identity: str | None = None
    """Identity of the data."""
    cached_from: int = 0
    """Revision at which the API server started. Its cache answers lists of this and later revisions."""

    @property
    def takes_writes(self) -> bool:
        return self.exists and self.runs and self.may_write

    def put(self, key: str, value: int) -> None:
        self.revision += 1
        self.data[key], self.versions[key] = value, self.revision

    def delete(self, key: str) -> None:
        self.revision += 1
        self.data.pop(key, None)
        self.versions.pop(key, None)


class World:
    """State that outlives an operator."""

    def __init__(self, monkeypatch: Any, *, window: str = "10m") -> None:
        self.homes = {0: Home(exists=True, runs=True, identity=_IDENTITY), 1: Home()}
        self.published, self.asked = 0, False
        """Content of the gateway's Secret: the home of the control plane, and whether writes are held."""
        self.server, self.held = 0, False
        """State of the gateway, which sees a changed Secret `_LATE` calls of the operator later."""
        self.hangs = False
        """Whether the gateway sees no changes. Unless `renews`, the operator counts no holds of its expired Lease."""
        self.renews = False
        """Whether the Lease of a gateway that hangs has not expired yet."""
        self.identity = _IDENTITY
        """Identity of the data in the home in use."""
        self._learns = -1
        self._lived_in = 0
        self.instance = True
        """Whether a kube-controller-manager works."""
        self.acknowledged: dict[str, int] = {}
        self.refused: list[str] = []
        """Failed requests of clients of the gateway."""
        self.writes = 0
        self.seen: dict[tuple[str, int], int] = {}
        """Values that clients may have read, by key and version."""
        self.highest: dict[str, int] = {}
        """Highest version of each key that clients have seen."""
        self.newest = 0
        """Highest revision that clients may have read."""
        self.object: dict[str, Any] = {
            "apiVersion": CONTROL_PLANES.api_version,
            "kind": "ControlPlane",
            "metadata": {"name": NAME, "uid": UID, "resourceVersion": "1", "generation": 1},
            "spec": {"mode": "Virtual", "migration": {"rollbackWindow": window}},
            "status": {
                "endpoint": "https://home-0",
                "dataIdentity": _IDENTITY,
                "clusterPath": NAME,
                "home": {"mode": "Virtual", "slot": 0},
            },
        }
        self.copies: dict[str, Any] = {}
        """Copies of the latest operator."""
        self.calls = 0
        self.at: Callable[[int, str], Awaitable[None]] | None = None
        """Callback before and after each call of an operator, with the number and the name of the call."""
        self.faults: dict[str, list[BaseException | str]] = {}
        """Faults of the next calls, by name of the call."""
        self._clock = time.monotonic()
        monkeypatch.setattr(cut, "Holds", lambda *_: _Holds(self))
        monkeypatch.setattr(cut, "at_gateway", lambda *_, provision, **__: provision)
        monkeypatch.setattr(cut, "write_gateway_secret", self.write_gateway_secret)
        monkeypatch.setattr(migrator, "check_served", _check_served)
        monkeypatch.setattr(migrator, "identify", _identify)
        monkeypatch.setattr(migrator, "set_identity", _set_identity)
        monkeypatch.setattr(migrator, "TenantKeys", lambda _: _Keys())
        monkeypatch.setattr(migrator, "registrations_of", lambda *_, **__: [])
        monkeypatch.setattr(migrator, "instances_of", lambda *_, **__: [NAME] if self.instance else [])
        for module in (migrator, turns):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self._tick))

    def _tick(self) -> float:
        self._clock += 400.0  # longer than any wait between two attempts
        return self._clock

    @property
    def control_plane(self) -> ControlPlane:
        return ControlPlane.model_validate(self.object)

    @property
    def step(self) -> str | None:
        return (self.object["status"].get("migration") or {}).get("step")

    @property
    def lives_in(self) -> int:
        return int(self.object["status"]["home"]["slot"])

    async def call(self, name: str, effect: Callable[[], Any] = lambda: None) -> Any:
        """Run the effect of an operator's call. The operator may die before or after the effect."""
        await self._point(name)
        if self.faults.get(name):
            fault = self.faults[name].pop(0)
            if isinstance(fault, BaseException):
                raise fault
        result = effect()
        self.check()
        await self._point(f"{name}, done")
        return result

    async def _point(self, name: str) -> None:
        self.calls += 1
        if self.calls == self._learns:
            self.learn()
        self.read(name)
        await asyncio.sleep(0)
        if self.at is not None:
            await self.at(self.calls, name)

    def check(self) -> None:
        """Assert that at most one home takes writes, and that the home in use has all data and is published.

        No copy writes to a home that takes writes. The revision of the home in use never falls. A version of a key
        always has the same value: otherwise, a client would overwrite a change that it never saw. The version of a key
        never falls, as informers expect.
        """
        assert not any(home.takes_writes and not home.closed for home in self.homes.values() if home.copied)
        assert not (self.homes[0].takes_writes and self.homes[1].takes_writes)
        assert self.homes[self.lives_in].data == self.acknowledged
        # With another endpoint, controllers would start for a home that takes no writes.
        assert self.object["status"]["endpoint"] == f"https://home-{self.lives_in}"
        home = self.homes[self.lives_in]
        for key, version in home.versions.items():
            assert self.seen.setdefault((key, version), home.data[key]) == home.data[key]
            assert version >= self.highest.get(key, 0)
            self.highest[key] = version
        assert home.identity == self.identity
        assert home.revision >= self.newest
        if self._lived_in != self.lives_in:
            # A list that began in the former home would miss keys if it continued here.
            assert min(home.oldest, home.cached_from) > self.newest
            self._lived_in = self.lives_in
        self.newest = home.revision

    def write(self, *, by: str = "gateway") -> None:
        """Write as a client. A writer other than the gateway, such as an API server itself, ignores holds."""
        if by == "gateway" and self.held:
            return
        slots = [self.server] if by == "gateway" else [0, 1]
        for slot in slots:
            self.writes += 1
            if self.homes[slot].takes_writes:
                key = f"key-{self.writes % 5}"
                if self.writes % 7:
                    self.homes[slot].put(key, self.writes)
                    self.acknowledged[key] = self.writes
                else:
                    self.homes[slot].delete(key)
                    self.acknowledged.pop(key, None)
            elif by == "gateway":
                self.refused.append(f"write {self.writes} at home {slot}")
        self.check()

    def read(self, now: str) -> None:
        """Read as a client, and assert that the data are current. The gateway never holds reads."""
        home = self.homes[self.server]
        if home.runs and home.may_read:
            assert home.data == self.acknowledged, f"a client reads old data at home {self.server}, at {now}"
        elif not self.hangs:
            self.refused.append(f"read at home {self.server}, at {now}")

    def learn(self) -> None:
        """Have the gateway apply its Secret."""
        if not self.hangs:
            self.held, self.server = self.asked, self.published

    def control_controllers(self) -> None:
        """Start or stop kube-controller-manager by the step, as registrations and mcm do."""
        self.instance = self.step not in {"EndingControllers", "Cutting"}

    async def write_gateway_secret(self, _: Any, control_plane: ControlPlane, **__: Any) -> None:
        def effect() -> None:
            self.published = control_plane.home.slot
            self._learns = self.calls + _LATE

        if self.published != control_plane.home.slot:
            await self.call("publish", effect)

    def ask_for(self, home: str) -> None:
        """Request a home as a user does: `Virtual`, `Virtual (pool-b)`, `Dedicated`, or `Dedicated (20Gi)`."""
        mode, _, argument = home.partition(" ")
        kind, value = mode.lower(), argument.strip("()")
        settings = {"virtual": {"dataStoreRef": {"name": value}}, "dedicated": {"volume": {"size": value}}}
        for section in settings:
            self.object["spec"].pop(section, None)
        self.set_spec(mode=mode, **({kind: settings[kind]} if value else {}))

    def other(self, name: str, *, began: datetime) -> dict[str, Any]:
        """Return another control plane, whose data are being copied."""
        manifest = copy.deepcopy(self.object)
        manifest["metadata"].update(name=name, uid=f"{UID[:-2]}f{name[-1]}")
        manifest["status"]["migration"] = {
            "source": {"mode": "Virtual"},
            "target": {"mode": "Dedicated", "slot": 1},
            "step": "Copying",
            "startedTime": began.isoformat(),
        }
        return manifest

    def set_spec(self, **spec: Any) -> None:
        """Change the spec as a user does."""
        self.object["spec"].update(spec)
        self._stored()

    def annotate(self) -> None:
        """Change the resourceVersion, as the gateway does when it records the last use in an annotation."""
        self._stored()

    def _stored(self) -> None:
        self.object["metadata"]["resourceVersion"] = str(int(self.object["metadata"]["resourceVersion"]) + 1)

    # Calls of operators to the management cluster.

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return copy.deepcopy(self.object)

    async def apply(self, _: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        def effect() -> dict[str, Any]:
            if body["metadata"]["resourceVersion"] != self.object["metadata"]["resourceVersion"]:
                raise Conflict(409, "Conflict", "the object has changed")
            self.object["status"] = copy.deepcopy(body["status"])
            self._stored()
            return copy.deepcopy(self.object)

        return dict(await self.call(f"write status {(body['status'].get('migration') or {}).get('step')}", effect))


class _Holds:
    def __init__(self, world: World) -> None:
        self._world = world

    async def begin(self, _: ControlPlane) -> None:
        def effect() -> None:
            self._world.asked = self._world.held = True

        await self._world.call("hold", effect)

    async def unconfirmed(self, _: ControlPlane) -> list[Replica]:
        return [Replica("replica", holds={}, in_flight={}, served=None)]

    async def followed(self, _: ControlPlane, *, seconds: float) -> bool:
        for _ in range(_LATE + 1 if seconds else 1):
            await self._world.call("look at the replicas")
            if self._world.server == self._world.published:
                return True
        return False

    def is_left(self, _: ControlPlane) -> bool:
        return self._world.asked

    async def redirect(self, control_plane: ControlPlane) -> None:
        await self._world.write_gateway_secret(None, control_plane)

    async def end(self, _: ControlPlane) -> None:
        def effect() -> None:
            self._world.asked = False
            if not self._world.hangs:
                self._world.held = False

        await self._world.call("end hold", effect)

    async def are_over(self, _: ControlPlane) -> bool:
        def effect() -> bool:
            expired = self._world.hangs and not self._world.renews
            return not self._world.asked and (expired or not self._world.held)

        return bool(await self._world.call("look at the gateway", effect))


class _Keys:
    async def forget_certificates(self, _: ControlPlane) -> None:
        pass


class _Backend:
    """Provisioners of both modes, as an operator has them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._writable: set[int] = set()
        """Slots whose fence this operator has lifted already."""

    def _home(self, control_plane: ControlPlane) -> Home:
        return self._world.homes[control_plane.home.slot]

    async def prepare_home(self, control_plane: ControlPlane, *, begins_at: int | None, new: bool) -> None:
        def effect() -> None:
            home = self._home(control_plane)
            home.exists = True
            home.revision = max(home.revision, (begins_at or 0) + 1)

        await self._world.call("prepare", effect)

    @contextlib.asynccontextmanager
    async def connect(self, control_plane: ControlPlane) -> AsyncIterator[Any]:
        async def revision() -> int:
            return self._home(control_plane).revision

        async def compact(revision: int) -> None:
            home = self._home(control_plane)
            assert revision <= home.revision
            await self._world.call("compact", lambda: setattr(home, "oldest", max(home.oldest, revision)))

        async def open_place(_: Any) -> None:
            await self._world.call("open", lambda: setattr(self._home(control_plane), "closed", False))

        client = SimpleNamespace(revision=revision, compact=compact, home=partial(self._home, control_plane))
        yield SimpleNamespace(client=client, prefix="/registry/", apply=open_place, only_if=())

    async def set_writable(self, control_plane: ControlPlane, *, writable: bool) -> None:
        home, slot = self._home(control_plane), control_plane.home.slot
        name = f"{'free' if writable else 'fence'} home {slot}"
        self._writable.discard(slot)

        def effect() -> None:
            home.may_write, home.may_read = writable, True

        await self._world.call(name, effect)
        if writable:
            self._writable.add(slot)

    async def ensure(self, control_plane: ControlPlane, *, writes: bool = True) -> Any:
        def effect() -> None:
            home = self._home(control_plane)
            if not home.runs:
                home.cached_from = home.revision
            home.exists = home.runs = True

        if not writes or control_plane.home.slot not in self._writable:
            await self.set_writable(control_plane, writable=writes)
        await self._world.call(f"start API server {control_plane.home.slot}", effect)
        internal = f"https://home-{control_plane.home.slot}"
        return SimpleNamespace(addresses=SimpleNamespace(internal=internal))

    async def seal(self, control_plane: ControlPlane) -> None:
        home, slot = self._home(control_plane), control_plane.home.slot
        await self._world.call(f"seal home {slot}", lambda: setattr(home, "may_read", False))

    async def retire(self, control_plane: ControlPlane) -> None:
        await self._world.call("retire", lambda: setattr(self._home(control_plane), "runs", False))

    async def shut_down(self, control_plane: ControlPlane) -> None:
        await self._world.call("shut down", lambda: setattr(self._home(control_plane), "runs", False))

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        assert policy is DeletionPolicy.DESTROY
        slot = control_plane.home.slot
        await self._world.call("settle", lambda: self._world.homes.__setitem__(slot, Home()))


class _Follower:
    def __init__(self, world: World, *, source: int, target: int) -> None:
        self._world, self._source, self._target = world, source, target
        self.keys = self.size = 0

    async def catch_up(self) -> Any:
        def effect() -> bool:
            source, target = self._world.homes[self._source], self._world.homes[self._target]
            assert not target.closed
            target.copied = True
            for key in target.data.keys() - source.data.keys():
                target.delete(key)
            for key, value in source.data.items():
                if target.data.get(key) != value or target.versions[key] < source.versions[key]:
                    target.put(key, value)
            return True

        if self._world.faults.get("compare") == ["unequal"]:
            self._world.faults.pop("compare")
            return SimpleNamespace(equal=False, source=SimpleNamespace(count=2, sha256="a"), target=_DIGEST)
        await self._world.call("compare", effect)
        return SimpleNamespace(equal=True, source=_DIGEST, target=_DIGEST)

    async def close(self) -> None:
        await self._world.call("close", lambda: setattr(self._world.homes[self._target], "closed", True))


async def _check_served(client: Any, prefix: str, *, served: Any) -> None:
    if (found := client.home().identity) != served.identity:
        raise DataLost(prefix, expected=served.identity, found=found)


async def _identify(client: Any, _: str, *, served: Any, **__: Any) -> str:
    assert client.home().identity == served.identity
    return str(served.identity)


async def _set_identity(client: Any, _: str, identity: str, **__: Any) -> None:
    client.home().identity = identity


_DIGEST = SimpleNamespace(count=1, sha256="0" * 64)


class _Copies:
    def __init__(self, world: World) -> None:
        self._world = world
        self._copies: dict[str, Any] = {}
        world.copies = self._copies

    def begin(self, uid: str, **_: Any) -> Any:
        world = self._world
        assert uid not in self._copies
        assert not world.homes[1 - world.lives_in].closed
        follower = _Follower(world, source=world.lives_in, target=1 - world.lives_in)
        self._copies[uid] = SimpleNamespace(follower=follower, complete=False, problem=None, lag_seconds=0.0)
        return self._copies[uid]

    def find(self, uid: str) -> Any:
        """Return the copy, and mark it as complete."""
        if (existing := self._copies.get(uid)) is not None:
            existing.complete = True
        return existing

    async def end(self, uid: str) -> None:
        self._copies.pop(uid, None)


class _Planner:
    async def plan(self, *_: Any, **__: Any) -> MigrationPlan:
        return MigrationPlan(keys=5, bytes=5, seconds=1)


class _Client:
    """Client of an operator. The answers to its writes go into the store of this operator alone."""

    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self.get = world.get

    async def apply(self, resource: Any, body: dict[str, Any], **named: Any) -> dict[str, Any]:
        stored = await self._world.apply(resource, body, **named)
        self._store.apply(copy.deepcopy(stored))
        return stored


class Operator:
    """A process of the operator."""

    def __init__(self, world: World, *, gateway: bool = True, others: Sequence[dict[str, Any]] = ()) -> None:
        """`gateway` is whether the operator was started with a gateway. `others` are further control planes."""
        self._world = world
        self.store = Store(CONTROL_PLANES)
        for other in others:
            self.store.apply(other)
        silent: Any = SimpleNamespace(record=lambda *_, **__: None)
        client: Any = _Client(world, self.store)
        self._status = StatusWriter(client, events=silent)
        context: Any = SimpleNamespace(
            client=client,
            stores=SimpleNamespace(control_planes=self.store),
            triggers=SimpleNamespace(control_planes=SimpleNamespace(add=lambda _: None)),
            status=self._status,
            events=silent,
            metrics=SimpleNamespace(migrated=lambda _: None),
            gateway=object() if gateway else None,
        )
        self._backend = _Backend(world)
        homes: Any = lambda _: self._backend  # noqa: E731
        copies: Any = _Copies(world)
        planner: Any = _Planner()
        self.migrator = migrator.Migrator(context, homes=homes, planner=planner, copies=copies, claim=lambda _: None)

    async def reconcile(self) -> None:
        """Run a pass of the reconciler: migration, API server, publication, status."""
        self.store.apply(copy.deepcopy(self._world.object))
        control_plane = ControlPlane.model_validate(self.store.get(("", NAME)))
        with contextlib.suppress(ProviderError, ConditionError):
            control_plane = await self.migrator.advance(control_plane, chosen=None)
            await self._backend.ensure(control_plane)
            await self._world.write_gateway_secret(None, control_plane)
            endpoint = f"https://home-{control_plane.home.slot}"
            status = control_plane.status.model_copy(update={"endpoint": endpoint})
            await self._status.write(self.store, control_plane, status=status)

    async def pause(self) -> None:
        """Pause the control plane, as its annotation requests."""
        self.store.apply(copy.deepcopy(self._world.object))
        await self.migrator.pause(self._world.control_plane)

    async def abandon(self) -> None:
        """Abandon the migration, as a deletion does first."""
        await self.migrator.abandon(self._world.control_plane)
