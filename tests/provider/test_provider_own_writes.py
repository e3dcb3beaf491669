"""Own writes against the watch: readers see their writes in each order of responses, events and lists."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.provider.cache import mirror as mirror_module
from kplane.provider.cache.entry import Change, EntryReader
from kplane.provider.cache.event import Handlers, Registration
from kplane.provider.cache.mirror import Mirror
from kplane.provider.cache.store import Store
from kplane.provider.client.resources import CONFIG_MAPS

NAMES = ("a", "b")


@dataclass(frozen=True)
class State:
    """An object at a revision. `selected` is true if the selector of the cache matches the object."""

    name: str
    uid: str
    version: int
    selected: bool
    held: bool = False
    deleting: bool = False


@dataclass
class Server:
    """The objects of an API server, with their history."""

    objects: dict[str, State] = field(default_factory=dict)
    history: list[tuple[str, State | None, State]] = field(default_factory=list)
    views: list[dict[str, State]] = field(default_factory=lambda: [{}])
    """The selected objects at each revision."""
    uids: int = 0

    @property
    def version(self) -> int:
        return len(self.views) - 1

    def write(self, name: str, *, selected: bool, held: bool = False) -> State:
        before = self.objects.get(name)
        if before is None:
            self.uids += 1
        uid, deleting = (f"u{self.uids}", False) if before is None else (before.uid, before.deleting)
        after = State(name, uid, self.version + 1, selected, held=held, deleting=deleting)
        if before is not None and deleting and not held:
            self._commit(before, State(name, uid, self.version + 1, before.selected), gone=True)
            # The response is a state that was never stored, with the previous version.
            return State(name, uid, before.version, selected, deleting=True)
        self._commit(before, after)
        return after

    def delete(self, name: str) -> tuple[State, bool]:
        """Return the response, and whether the object is deleted."""
        before = self.objects[name]
        if before.held:
            if before.deleting:
                return before, False
            after = State(name, before.uid, self.version + 1, before.selected, held=True, deleting=True)
            self._commit(before, after)
            return after, False
        self._commit(before, State(name, before.uid, self.version + 1, before.selected), gone=True)
        return before, True

    def _commit(self, before: State | None, after: State, *, gone: bool = False) -> None:
        view = dict(self.views[-1])
        was = before is not None and before.selected
        if gone:
            del self.objects[after.name]
            view.pop(after.name, None)
        else:
            self.objects[after.name] = after
            view.pop(after.name, None)
            if after.selected:
                view[after.name] = after
        self.views.append(view)
        if not gone and after.selected:
            self.history.append(("MODIFIED" if was else "ADDED", before, after))
        else:
            self.history.append(("DELETED" if was else "", before, after))


def raw(state: State) -> dict[str, object]:
    metadata: dict[str, object] = {
        "name": state.name,
        "namespace": "ns",
        "uid": state.uid,
        "resourceVersion": str(state.version),
        "labels": {"app": "web" if state.selected else "db"},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


class World:
    """A server, a mirror that follows it, and responses in flight."""

    def __init__(self) -> None:
        self.server = Server()
        self.reader = EntryReader(CONFIG_MAPS, server="server")
        self.store = Store(self.reader)
        handlers, synced = Handlers(), asyncio.Event()
        self.mirror = Mirror(
            self.store, handlers, namespace=None, transform=None, bytes_at_most=None, changed=lambda: None
        )
        self.replica: dict[str, tuple[str, str]] = {}
        registration = Registration(
            self.see, pending=(), present=lambda _key: None, source_synced=synced, removed=lambda _ended: None
        )
        handlers.add(registration, namespace=None)
        self.position = 0
        """Revision up to which the watch was read."""
        self.listed: tuple[int, dict[str, State]] | None = None
        self.is_listing = False
        self.listing: asyncio.Task[None] | None = None
        self.answers: list[tuple[State, bool, int]] = []
        """The answer, whether the object is gone, and the revision that the write made."""
        self.floors: dict[str, int] = {}
        self.problems: list[str] = []

    def see(self, event) -> None:
        known = self.replica.get(event.name)
        now = (event.uid, event.resource_version)
        expected = "ADDED" if known is None else "MODIFIED"
        if event.kind == "DELETED":
            if known is None or known[0] != event.uid:
                self.problems.append(f"{event!r} for {known}")
            self.replica.pop(event.name, None)
            return
        if event.kind != expected or now == known or (known is not None and known[0] != event.uid):
            self.problems.append(f"{event.kind} {now} after {known}")
        self.replica[event.name] = now

    def entry(self, state: State):
        return self.reader.entry(json.dumps(raw(state)).encode())

    def write(self, name: str, change: str, *, own: bool) -> None:
        """Write to the server. The response to an own write is in flight afterwards."""
        if change != "delete":
            answer, gone = self.server.write(name, selected=change != "leave", held=change == "hold"), False
        elif name in self.server.objects:
            answer, gone = self.server.delete(name)
        else:
            return
        if own:
            self.answers.append((answer, gone, self.server.version))

    def answer(self, number: int) -> None:
        """Deliver a response in flight."""
        if not self.answers:
            return
        state, gone, revision = self.answers.pop(number % len(self.answers))
        key = ("ns", state.name)
        known = self.store.get(key)
        if gone:
            self.mirror.observe_removal(key, uid=state.uid, version=0)
            counts = known is not None and known.uid == state.uid
        elif state.deleting and not state.held:
            self.mirror.observe_removal(key, uid=state.uid, version=state.version)
            counts = known is not None and known.uid == state.uid
        else:
            self.mirror.observe(self.entry(state), is_selected=state.selected)
            counts = state.selected or known is not None
        if counts:
            self.floors[state.name] = max(self.floors.get(state.name, 0), revision)

    def watch(self, count: int) -> None:
        """Deliver a batch of events, with a bookmark at the end."""
        if self.is_listing:
            return
        until = min(self.position + count, self.server.version)
        changes = []
        for number in range(self.position, until):
            kind, before, after = self.server.history[number]
            if kind:
                shown = after if kind != "DELETED" or before is None else before
                seen = State(shown.name, shown.uid, number + 1, shown.selected, shown.held, shown.deleting)
                changes.append(Change(kind, self.entry(seen)))
        self.position = until
        self.mirror.apply(changes, resource_version=str(until))

    def begin_list(self) -> None:
        if not self.is_listing:
            self.is_listing, self.listed = True, None
            self.mirror.begin()

    def serve_list(self) -> None:
        if self.is_listing and self.listed is None:
            self.listed = (self.server.version, dict(self.server.views[-1]))

    async def take_list(self) -> None:
        """Begin to process the list, or continue with the next object."""
        if self.listed is not None and self.listing is None:
            version, view = self.listed
            entries = [self.entry(state) for state in view.values()]
            self.listing = asyncio.create_task(self.mirror.replace(entries, resource_version=str(version)))
        if self.listing is not None:
            await asyncio.sleep(0)
            if self.listing.done():
                self.listing.result()
                assert self.listed is not None
                self.position, self.listing, self.is_listing, self.listed = self.listed[0], None, False, None

    async def settle(self) -> None:
        """Deliver all responses in flight."""
        while self.answers:
            self.answer(0)
            self.check()
        while self.is_listing:
            self.serve_list()
            await self.take_list()
            self.check()
        while self.position < self.server.version:
            self.watch(2)
            self.check()
        self.mirror.apply([], resource_version=str(self.server.version))
        self.check()

    def check(self) -> None:
        assert self.problems == []
        assert self.replica == {entry.name: (entry.uid, entry.resource_version) for entry in self.store}
        for name, floor in self.floors.items():
            known = self.store.get(("ns", name))
            seen = None if known is None else int(known.resource_version)
            # A relist starts from later revisions, and may skip some.
            possible = {
                None if (state := view.get(name)) is None else state.version for view in self.server.views[floor:]
            }
            assert seen in possible, f"{name} is read at {seen}, after a write at {floor}"


WRITES = st.tuples(
    st.sampled_from(["own", "other"]),
    st.sampled_from(NAMES),
    st.sampled_from(["select", "hold", "leave", "delete"]),
)
STEPS = st.one_of(
    WRITES,
    WRITES,
    st.tuples(st.just("answer"), st.integers(0, 3)),
    st.tuples(st.just("watch"), st.integers(1, 4)),
    st.sampled_from([("begin list",), ("serve list",), ("take list",)]),
)


async def play(steps) -> None:
    world = World()
    for step in steps:
        match step:
            case (("own" | "other") as writer, str(name), str(change)):
                world.write(name, change, own=writer == "own")
            case ("answer", int(number)):
                world.answer(number)
            case ("watch", int(count)):
                world.watch(count)
            case ("begin list",):
                world.begin_list()
            case ("serve list",):
                world.serve_list()
            case ("take list",):
                await world.take_list()
        world.check()
    await world.settle()
    final = {state.name: str(state.version) for state in world.server.views[-1].values()}
    assert {entry.name: entry.resource_version for entry in world.store} == final


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_readers_see_own_writes_and_converge_to_the_server_state(steps):
    slice_size, mirror_module._SLICE = mirror_module._SLICE, 1
    try:
        asyncio.run(play(steps))
    finally:
        mirror_module._SLICE = slice_size


def state(name, version, *, uid="u1", selected=True):
    return State(name, uid, version, selected)


def names(world):
    return {entry.name: entry.resource_version for entry in world.store}


async def test_write_survives_a_list_of_an_earlier_version():
    world = World()
    world.mirror.begin()
    world.mirror.observe(world.entry(state("a", 9)), is_selected=True)
    await world.mirror.replace([], resource_version="5")
    assert names(world) == {"a": "9"}


async def test_list_drops_earlier_writes_after_a_restore_of_etcd():
    world = World()
    world.mirror.observe(world.entry(state("a", 90)), is_selected=True)
    world.mirror.begin()
    await world.mirror.replace([], resource_version="5")
    world.mirror.observe(world.entry(state("b", 6)), is_selected=True)
    assert names(world) == {"b": "6"}


async def test_write_is_dropped_when_a_bookmark_passes_its_version():
    world = World()
    world.mirror.observe(world.entry(state("a", 6)), is_selected=True)
    world.mirror.apply([], resource_version="5")
    assert names(world) == {"a": "6"}
    world.mirror.apply([], resource_version="6")
    assert (names(world), world.replica) == ({}, {})


async def test_write_without_a_numeric_version_is_left_to_the_watch():
    world = World()
    body = raw(state("a", 1))
    body["metadata"]["resourceVersion"] = "opaque"
    world.mirror.observe(world.reader.entry(json.dumps(body).encode()), is_selected=True)
    assert names(world) == {}


async def test_later_event_revokes_an_assumed_removal():
    world = World()
    world.mirror.apply([Change("ADDED", world.entry(state("a", 3)))], resource_version="3")
    world.mirror.observe_removal(("ns", "a"), uid="u1", version=3)
    assert names(world) == {}
    world.mirror.apply([Change("MODIFIED", world.entry(state("a", 4)))], resource_version="4")
    assert names(world) == {"a": "4"}


async def test_late_events_and_lists_do_not_restore_removed_objects():
    world = World()
    world.mirror.apply([Change("ADDED", world.entry(state("a", 3)))], resource_version="3")
    world.mirror.begin()
    world.mirror.observe_removal(("ns", "a"), uid="u1", version=0)
    world.mirror.apply([Change("MODIFIED", world.entry(state("a", 4)))], resource_version="4")
    await world.mirror.replace([world.entry(state("a", 4))], resource_version="4")
    assert names(world) == {}
    world.mirror.apply([Change("DELETED", world.entry(state("a", 5)))], resource_version="5")
    assert world.mirror._own_writes._removed == {}
    assert names(world) == {}


async def test_writes_above_the_limit_are_left_to_the_watch(monkeypatch):
    monkeypatch.setattr("kplane.provider.cache.own_writes._MAX_PENDING", 2)
    world = World()
    for number, name in enumerate("abc", start=1):
        world.mirror.observe(world.entry(state(name, number)), is_selected=True)
    assert names(world) == {"a": "1", "b": "2"}
