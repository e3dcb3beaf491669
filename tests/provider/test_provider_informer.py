"""Informers against a server with scripted faults."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json

import pytest

from kplane.provider import Client, ClusterNotReady, Informer
from kplane.provider.aio.backoff import Backoff
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import CONFIG_MAPS

END = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}


def item(name, version, *, uid="u", **more):
    metadata = {"name": name, "namespace": "ns", "resourceVersion": str(version), "uid": f"{uid}-{name}", **more}
    return {"metadata": metadata, "data": {"from": str(version)}}


def event(kind, found):
    return json.dumps({"type": kind, "object": found}, separators=(",", ":")).encode() + b"\n"


def end(version=5):
    return event("BOOKMARK", {"metadata": {**END["metadata"], "resourceVersion": str(version)}})


class Script:
    """A collection with scripted answers: streams (with initial objects), watches and lists, which stall at their end.

    A number is a refusal; "stall" waits, "reset" cuts the connection; a callable is awaited.
    """

    def __init__(self, tools, *, streams=(), watches=(), lists=()):
        self.tools = tools
        self.todo = {"stream": list(streams), "watch": list(watches), "list": list(lists)}
        self.asked = []
        self.headers = []

    async def answer(self, asked, writer):
        self.headers.append(asked.headers)
        query = dict(part.split("=", 1) for part in asked.target.partition("?")[2].split("&"))
        kind = "list" if "watch" not in query else "stream" if "sendInitialEvents" in query else "watch"
        self.asked.append((kind, query["resourceVersion"]) if kind == "watch" else kind)
        todo = self.todo[kind]
        if not todo:
            await asyncio.sleep(60)
        step = todo.pop(0)
        if isinstance(step, int):
            writer.write(self.tools.http({"kind": "Status", "code": step}, status=step))
        elif kind == "list":
            version, items = step
            writer.write(self.tools.http({"metadata": {"resourceVersion": str(version)}, "items": items}))
        else:
            await self.stream(step, writer)

    async def stream(self, step, writer):
        writer.write(self.tools.stream_head())
        for part in step:
            if callable(part):
                await writer.drain()
                await part()
            elif part == "stall":
                await writer.drain()
                await asyncio.sleep(60)
            elif part == "reset":
                await writer.drain()
                writer.transport.abort()
                return
            else:
                writer.write(self.tools.chunk(part))
        writer.write(self.tools.chunk(b""))


class Seen(list):
    """A handler that records its events."""

    def __call__(self, event):
        self.append((event.kind, event.name, event.resource_version, event.initial))


@pytest.fixture
def play(fault_server, tools):
    """`async with play(streams=..., ...) as (informer, script)`: run an informer."""

    @contextlib.asynccontextmanager
    async def run(*, limits=AnswerLimits(), timeout_seconds=30.0, options=None, **steps):  # noqa: B008 - frozen
        script = Script(tools, **steps)
        server = await fault_server(script.answer)
        config = dataclasses.replace(server.config, token="old")
        async with Client(config, timeout_seconds=timeout_seconds, limits=limits) as client:
            backoff = Backoff(initial_seconds=0.01, maximum_seconds=0.05)
            informer = Informer(client, CONFIG_MAPS, backoff=backoff, **(options or {}))
            informer.start()
            try:
                yield informer, script
            finally:
                await informer.aclose()

    return run


async def test_informer_syncs_and_watches_with_one_request(play, eventually):
    stream = [event("ADDED", item("a", 1)), event("ADDED", item("b", 2)) + end(), event("MODIFIED", item("a", 6))]
    seen, olds = Seen(), []
    async with play(streams=[[*stream, "stall"]]) as (informer, script):
        informer.add_handler(seen)
        informer.add_handler(lambda event: olds.append((event.object["data"], event.old and event.old["data"])))
        await eventually(lambda: len(seen) == 3)
        assert informer.synced.is_set()
        assert informer.state == "ready"
        assert informer.get("a", namespace="ns") == {"apiVersion": "v1", "kind": "ConfigMap", **item("a", 6)}
        assert sorted(informer.keys()) == [("ns", "a"), ("ns", "b")]
    assert seen == [("ADDED", "a", "1", True), ("ADDED", "b", "2", True), ("MODIFIED", "a", "6", False)]
    assert olds[2] == ({"from": "6"}, {"from": "1"})
    assert script.asked == ["stream"]


@pytest.mark.parametrize(
    ("refusal", "patience"),
    [(400, 30.0), (422, 30.0), ([event("ADDED", item("a", 1)), "stall"], 1.0)],
    ids=["400", "422", "without an end"],
)
async def test_informer_lists_pages_when_server_cannot_stream(play, eventually, refusal, patience):
    seen = Seen()
    gone = event("ERROR", {"kind": "Status", "code": 410})
    lists = [(5, [item("a", 1)]), (9, [item("b", 8)])]
    async with play(streams=[refusal], lists=lists, watches=[[gone], ["stall"]], timeout_seconds=patience) as (
        informer,
        script,
    ):
        informer.add_handler(seen)
        await eventually(lambda: script.asked[-1] == ("watch", "9"))
    assert seen == [("ADDED", "a", "1", True), ("DELETED", "a", "1", False), ("ADDED", "b", "8", False)]
    assert script.asked == ["stream", "list", ("watch", "5"), "list", ("watch", "9")]


async def test_informer_relists_after_410_and_sends_deleted_events(play, eventually):
    gone = event("ERROR", {"kind": "Status", "code": 410})
    seen = Seen()
    async with play(
        streams=[
            [
                event("ADDED", item("a", 1)) + event("ADDED", item("b", 2)) + end(),
                event("MODIFIED", item("a", 6)),
                gone,
            ],
            [event("ADDED", item("b", 8)), event("ADDED", item("c", 9)) + end(9), "stall"],
        ]
    ) as (informer, script):
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 6)
        assert informer.restarts == {"expired": 1}
    assert seen[2:] == [
        ("MODIFIED", "a", "6", False),
        ("DELETED", "a", "6", False),
        ("MODIFIED", "b", "8", False),
        ("ADDED", "c", "9", False),
    ]
    assert script.asked == ["stream", "stream"]


@pytest.mark.parametrize("cut", [["reset"], [b'{"type":"ADDED","obj'], [], [b"<html>\n"]])
async def test_informer_resumes_watch_after_lost_connection(play, eventually, cut):
    seen = Seen()
    begin = [end(), event("ADDED", item("a", 6)), event("BOOKMARK", {"metadata": {"resourceVersion": "7"}}), *cut]
    async with play(streams=[begin], watches=[503, 401, [event("ADDED", item("b", 8)), "stall"]]) as (informer, script):
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 2)
        assert informer.state == "ready"
        assert informer.error == ""
    assert seen == [("ADDED", "a", "6", False), ("ADDED", "b", "8", False)]
    assert script.asked == ["stream", ("watch", "7"), ("watch", "7"), ("watch", "7")]


async def test_informer_relists_and_keeps_objects_when_watches_fail(play, eventually):
    seen = Seen()
    begin = [event("ADDED", item("a", 1)) + end(), "reset"]
    async with play(streams=[begin], watches=[500] * 3, lists=[(9, [item("a", 1)])]) as (informer, script):
        informer.add_handler(seen)
        await eventually(lambda: "list" in script.asked)
        assert informer.get("a", namespace="ns")
        await eventually(lambda: script.asked[-1] == ("watch", "9"))
    assert seen == [("ADDED", "a", "1", True)]


async def test_informer_keeps_objects_when_initial_stream_breaks(play, eventually):
    seen = Seen()
    gone = event("ERROR", {"kind": "Status", "code": 410})
    async with play(
        streams=[
            [event("ADDED", item("a", 1)) + event("ADDED", item("b", 2)) + end(), gone],
            [event("ADDED", item("b", 2)), "reset"],
            [event("ADDED", item("a", 1)), event("ADDED", item("b", 3)) + end(9), "stall"],
        ]
    ) as (informer, _script):
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 3)
    assert seen[2] == ("MODIFIED", "b", "3", False)


async def test_informer_replaces_stalled_watch_at_same_version(play, eventually):
    async with play(streams=[[end(), "stall"]], options={"idle_timeout_seconds": 0.2}) as (informer, script):
        await eventually(lambda: len(script.asked) > 1)
        assert set(script.asked[1:]) == {("watch", "5")}
        assert informer.restarts.keys() == {"unreachable"}


async def test_informer_sends_deleted_and_added_for_recreated_object(play, eventually):
    seen = Seen()
    async with play(
        streams=[[event("ADDED", item("a", 1)) + end(), event("MODIFIED", item("a", 6, uid="new")), "stall"]]
    ) as (informer, _script):
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 3)
    assert [each[:3] for each in seen] == [("ADDED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "6")]


async def test_late_handler_gets_each_object_exactly_once(play, eventually):
    go = asyncio.Event()
    present = b"".join(event("ADDED", item(f"o{number}", number + 1)) for number in range(350))
    changes = (
        event("MODIFIED", item("o349", 1001))
        + event("DELETED", item("o348", 1002))
        + event("DELETED", item("o0", 1003))
        + event("ADDED", item("new", 1004))
        + event("ADDED", item("o348", 1005, uid="again"))
    )
    async with play(streams=[[present + end(), go.wait, changes, "stall"]]) as (informer, _script):
        await informer.wait_synced()
        late, removed = Seen(), Seen()
        registration = informer.add_handler(late)
        assert late == []
        # The changes arrive between the first and the last initial object of the handler.
        await asyncio.sleep(0)
        assert len(late) == 100
        informer._parts.of(None).mirror.apply(
            [informer._reader.change(line) for line in changes.splitlines()], resource_version=""
        )
        assert not registration.synced.is_set()
        other = informer.add_handler(removed)
        await asyncio.sleep(0)
        other.remove()
        await asyncio.wait_for(registration.synced.wait(), 60)
        assert len(removed) == 100
        assert not other.synced.is_set()
    by_name = {}
    for kind, name, version, initial in late:
        by_name.setdefault(name, []).append((kind, version, initial))
    assert by_name.pop("o0") == [("ADDED", "1", True), ("DELETED", "1003", False)]
    assert by_name.pop("o349") == [("ADDED", "1001", True)]
    # The handler gets DELETED without ADDED: it may know the object from an earlier registration.
    assert by_name.pop("o348") == [("DELETED", "1002", False), ("ADDED", "1005", False)]
    assert by_name.pop("new") == [("ADDED", "1004", False)]
    assert {name: events for name, events in by_name.items() if len(events) != 1} == {}
    assert len(by_name) == 347


async def test_removed_handler_gets_no_pending_event(play, eventually):
    seen = Seen()
    async with play(
        streams=[[end(), event("ADDED", item("a", 6)) + event("ADDED", item("b", 7)) + event("ADDED", item("c", 8))]]
    ) as (informer, _script):

        def handler(event):
            seen(event)
            registration.remove()
            next_one.remove()

        registration = informer.add_handler(handler)
        never, others = Seen(), Seen()
        next_one = informer.add_handler(never)
        informer.add_handler(others)
        await eventually(lambda: len(others) == 3)
    assert len(seen) == 1
    assert never == []


async def test_failing_handler_is_logged_and_isolated(play, eventually, caplog):
    seen = Seen()

    def handler(event):
        raise ValueError("odd")

    async with play(streams=[[event("ADDED", item("a", 1)) + end(), "stall"]]) as (informer, _script):
        informer.add_handler(handler)
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 1)
    assert "failed to handle Event(ADDED ConfigMap ns/a)" in caplog.text


async def test_closed_informer_raises_not_ready(play):
    async with play(streams=[[end(), "stall"]]) as (informer, _script):
        await informer.wait_synced()
        registration = informer.add_handler(Seen())
        await informer.aclose()
        registration.remove()
        for call in (
            lambda: informer.add_handler(Seen()),
            lambda: informer.get("a", namespace="ns"),
            informer.list,
            informer.keys,
        ):
            with pytest.raises(ClusterNotReady, match="was stopped"):
                call()
        with pytest.raises(ClusterNotReady, match="was stopped"):
            await informer.wait_synced()


async def test_handler_of_a_namespace_gets_only_its_events(play, eventually):
    other = {"metadata": {**item("a", 2)["metadata"], "namespace": "other"}}
    more = asyncio.Event()
    stream = [event("ADDED", item("a", 1)), event("ADDED", other) + end(), more.wait]
    stream += [event("MODIFIED", {"metadata": {**other["metadata"], "resourceVersion": "6"}})]
    stream += [event("MODIFIED", item("a", 7)), event("MODIFIED", item("a", 8)), "stall"]
    everywhere, within, elsewhere, removed = Seen(), Seen(), Seen(), Seen()
    async with play(streams=[stream]) as (informer, _):
        informer.add_handler(everywhere)
        registration = informer.add_handler(within, namespace="ns")
        gone = informer.add_handler(removed, namespace="ns")
        empty = informer.add_handler(elsewhere, namespace="elsewhere")
        await eventually(lambda: registration.synced.is_set() and empty.synced.is_set())
        late = Seen()
        informer.add_handler(late, namespace="other")
        await eventually(lambda: late)
        gone.remove()
        more.set()
        await eventually(lambda: len(everywhere) == 5)
        assert within == [("ADDED", "a", "1", True), ("MODIFIED", "a", "7", False), ("MODIFIED", "a", "8", False)]
        assert late == [("ADDED", "a", "2", True), ("MODIFIED", "a", "6", False)]
        assert removed == [("ADDED", "a", "1", True)]
        assert elsewhere == []


async def test_informer_keeps_watch_after_token_renewal(play, eventually):
    """Criterion 74: new credentials keep a running watch, which continues at its resourceVersion."""
    renewed, cut = asyncio.Event(), asyncio.Event()
    seen = Seen()
    stream = [end(), renewed.wait, event("ADDED", item("a", 6)), cut.wait, "reset"]
    async with play(streams=[stream], watches=[401, [event("ADDED", item("b", 7)), "stall"]]) as (informer, script):
        informer.add_handler(seen)
        await informer.wait_synced()
        client = informer.feeds[0]._client
        await client.update(dataclasses.replace(client.config, token="new"))
        renewed.set()
        await eventually(lambda: len(seen) == 1)
        assert script.asked == ["stream"]
        cut.set()
        await eventually(lambda: len(seen) == 2)
    assert seen == [("ADDED", "a", "6", False), ("ADDED", "b", "7", False)]
    # The 401 concerned the old token, so the version is still valid.
    assert script.asked == ["stream", ("watch", "6"), ("watch", "6")]
    assert script.headers[-1]["authorization"] == "Bearer new"


async def test_informer_yields_to_other_tasks_during_flood(play, eventually):
    flood = b"".join(event("MODIFIED", item("a", number)) for number in range(10, 2000))
    seen, turns = Seen(), 0
    async with play(streams=[[event("ADDED", item("a", 1)) + end(), "stall"]]) as (informer, _script):
        informer.add_handler(seen)
        await informer.wait_synced()
        await asyncio.sleep(0)

        async def others():
            nonlocal turns
            while len(seen) < 1991:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        await informer.feeds[0]._handle(flood.splitlines())
        await other
    assert turns >= 19


async def test_initial_stream_above_list_limit_is_refused(play, eventually):
    limits = AnswerLimits(list_bytes=10_000)
    endless = b"".join(event("ADDED", item(f"o{number}", number + 1)) for number in range(200))
    async with play(streams=[[endless, "stall"]], limits=limits) as (informer, _script):
        await eventually(lambda: "answered with more than 10000 bytes" in informer.error)
        assert informer.state == "unreachable"
        assert informer.size_bytes == 0


async def test_watch_above_list_limit_restarts_informer(play, eventually):
    limits = AnswerLimits(list_bytes=10_000)
    endless = [event("ADDED", item(f"o{number}", number + 10)) for number in range(200)]
    async with play(
        streams=[[event("ADDED", item("a", 1)) + end(), *endless], [event("ADDED", item("b", 1)) + end(), "stall"]],
        limits=limits,
    ) as (informer, script):
        await eventually(lambda: script.asked == ["stream", "stream"] and informer.state == "ready")
        assert informer.keys() == [("ns", "b")]
        assert informer.restarts == {"unreachable": 1}


async def test_event_above_value_limit_is_refused(play, eventually):
    brackets = {**item("a", 1), "spec": [[[]]] * 1000}
    for stream in ([event("ADDED", brackets) + end()], [end(), event("ADDED", brackets)]):
        async with play(streams=[[*stream, "stall"]], limits=AnswerLimits(values=1000)) as (informer, _script):
            await eventually(lambda: "more than 1000 values" in informer.error)
            assert informer.keys() == []


async def test_informer_relists_periodically(play, eventually):
    first, second = [event("ADDED", item("ghost", 1)) + end(), "stall"], [end(9), "stall"]
    seen = Seen()
    async with play(streams=[first, second], options={"relist_seconds": 0.2, "idle_timeout_seconds": 0.3}) as (
        informer,
        script,
    ):
        informer.add_handler(seen)
        await eventually(lambda: len(seen) == 2)
    assert seen[1] == ("DELETED", "ghost", "1", False)
    assert script.asked[:2] == ["stream", "stream"]


async def test_refresh_returns_after_list_begun_later(play):
    gate, begun = asyncio.Event(), asyncio.Event()

    async def hold():
        begun.set()
        await gate.wait()

    listed = event("ADDED", item("ghost", 1)), event("ADDED", item("new", 7))
    first, second = [listed[0] + end(), "stall"], [hold, listed[1] + end(9), "stall"]
    seen = Seen()
    async with play(streams=[first, second, [listed[1] + end(9), "stall"]]) as (informer, script):
        informer.add_handler(seen)
        await informer.wait_synced()
        assert informer.down_seconds == 0.0
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            # The watch is silent, so only a list shows that one object is gone and another is new.
            refresh = group.create_task(informer.refresh())
            await begun.wait()
            assert not refresh.done()
            # The second list has begun before this call, so a third one follows.
            group.create_task(informer.refresh())
            await asyncio.sleep(0)
            gate.set()
        assert informer.state == "ready"
    assert [change[:2] for change in seen] == [("ADDED", "ghost"), ("DELETED", "ghost"), ("ADDED", "new")]
    assert script.asked == ["stream", "stream", "stream"]


async def test_refresh_waits_for_server_that_is_away(play, eventually):
    first, second = [event("ADDED", item("a", 1)) + end(), "stall"], [event("ADDED", item("a", 1)) + end(9), "stall"]
    async with play(streams=[first, 503, 503, second]) as (informer, script):
        await informer.wait_synced()
        async with asyncio.timeout(10):
            await informer.refresh()
        assert informer.down_seconds == 0.0
    assert script.asked == ["stream"] * 4


async def test_version_follows_lists_events_and_bookmarks(play, eventually):
    gates = [asyncio.Event() for _ in range(2)]
    rest = [gates[0].wait, event("MODIFIED", item("a", 7)), gates[1].wait, end(9), "stall"]
    async with play(streams=[[event("ADDED", item("a", 1)) + end(5), *rest]]) as (informer, _script):
        assert informer.version == 0
        await informer.wait_synced()
        await eventually(lambda: informer.version, lambda version: version == 5)
        gates[0].set()
        await eventually(lambda: informer.version, lambda version: version == 7)
        gates[1].set()
        await eventually(lambda: informer.version, lambda version: version == 9)


async def test_down_seconds_grow_until_watch_is_open_again(play, eventually):
    stream = [event("ADDED", item("a", 1)) + end(), "reset"]
    gate = asyncio.Event()
    async with play(streams=[stream], watches=[503, 503, [gate.wait, "stall"]]) as (informer, _script):
        await eventually(lambda: informer.down_seconds > 0)
        assert informer.state == "unreachable"
        gate.set()
        await eventually(lambda: informer.down_seconds, lambda seconds: seconds == 0)
        assert informer.state == "ready"


async def test_refresh_of_stopped_informer_raises_not_ready(play):
    async with play(streams=[[end(), "stall"]]) as (informer, _script):
        await informer.wait_synced()
        refresh = asyncio.create_task(informer.refresh())
        await asyncio.sleep(0)
        await informer.aclose()
        with pytest.raises(ClusterNotReady):
            await refresh
