"""Informers of a collection or a name, against faults that a real API server does not show on demand."""

from __future__ import annotations

import asyncio
import json

import pytest

from kplane.provider import Client, Informer
from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.resources import CONFIG_MAPS


def item(name, version, *, uid="u"):
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "uid": f"{uid}-{name}"}}


def event(kind, found):
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


class Script:
    """A collection whose lists and watches follow a script; all requests stall at its end."""

    def __init__(self, tools, *, lists, watches):
        self.tools, self.lists, self.watches = tools, list(lists), list(watches)
        self.asked = []

    async def answer(self, asked, writer):
        is_watch = "watch=true" in asked.target
        version = next((part[16:] for part in asked.target.split("&") if part.startswith("resourceVersion=")), None)
        self.asked.append(("watch", version) if is_watch else "list")
        todo = self.watches if is_watch else self.lists
        if not todo:
            await asyncio.sleep(60)
        step = todo.pop(0)
        if isinstance(step, int):
            writer.write(self.tools.http({"kind": "Status", "code": step}, status=step))
        elif is_watch:
            writer.write(self.tools.stream_head())
            for part in step:
                if part == "stall":
                    await writer.drain()
                    await asyncio.sleep(60)
                if part == "reset":
                    await writer.drain()
                    writer.transport.abort()
                    return
                writer.write(self.tools.chunk(part))
            writer.write(self.tools.chunk(b""))
        else:
            version, items = step
            writer.write(self.tools.http({"metadata": {"resourceVersion": str(version)}, "items": items}))


@pytest.fixture
def play(fault_server, tools, eventually):
    async def run(*, lists, watches, until, raising=False, **options):
        script = Script(tools, lists=lists, watches=watches)
        server = await fault_server(script.answer)
        events = []

        def handler(event):
            events.append((event.kind, event.name, event.resource_version))
            if raising:
                raise ValueError("odd")

        async with Client(server.config) as client:
            backoff = Backoff(initial_seconds=0.01, maximum_seconds=0.05)
            server_state = ServerState()
            server_state.refuses_streams = True
            informer = Informer(client, CONFIG_MAPS, namespace="ns", server=server_state, backoff=backoff, **options)
            task = asyncio.create_task(informer.run(handler))
            await eventually(lambda: (events, script.asked), lambda seen: until(seen[0], seen[1], informer))
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
        return events, script.asked

    return run


async def test_informer_relists_after_410_and_reports_deletions(play):
    gone = event("ERROR", {"kind": "Status", "code": 410})
    events, asked = await play(
        lists=[(5, [item("a", 1), item("b", 2)]), (9, [item("b", 8), item("c", 9)])],
        watches=[[event("MODIFIED", item("a", 6)), gone], ["stall"]],
        until=lambda events, asked, _: asked[-1] == ("watch", "9"),
    )
    assert events == [
        ("ADDED", "a", "1"),
        ("ADDED", "b", "2"),
        ("MODIFIED", "a", "6"),
        ("DELETED", "a", "6"),
        ("MODIFIED", "b", "8"),
        ("ADDED", "c", "9"),
    ]
    assert asked == ["list", ("watch", "5"), "list", ("watch", "9")]


async def test_informer_resumes_a_lost_watch_without_a_list(play):
    for end in (["reset"], [b'{"type":"ADDED","obj'], []):
        events, asked = await play(
            lists=[(5, [])],
            watches=[[event("ADDED", item("a", 6)), event("BOOKMARK", item("", 7)), *end], ["stall"]],
            until=lambda events, asked, _: len(asked) == 3,
        )
        assert events == [("ADDED", "a", "6")]
        assert asked == ["list", ("watch", "5"), ("watch", "7")]


async def test_informer_backs_off_when_watches_end_at_once(play):
    _, asked = await play(
        lists=[(5, [])],
        watches=[[]] * 4 + [["stall"]],
        until=lambda events, asked, informer: len(asked) == 6,
    )
    assert asked == ["list"] + [("watch", "5")] * 5


async def test_informer_reopens_a_stalled_watch(play):
    _, asked = await play(
        lists=[(5, [])],
        watches=[["stall"], ["stall"]],
        until=lambda events, asked, _: len(asked) >= 3,
        idle_timeout_seconds=0.2,
    )
    assert asked[:3] == ["list", ("watch", "5"), ("watch", "5")]


async def test_informer_reports_recreated_object_as_deleted_and_added(play):
    events, _ = await play(
        lists=[(5, [item("a", 1)])],
        watches=[[event("MODIFIED", item("a", 6, uid="new")), "stall"]],
        until=lambda events, *_: len(events) == 3,
    )
    assert events == [("ADDED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "6")]


async def test_informer_retries_refusals_and_survives_handler_errors(play, caplog):
    events, _ = await play(
        lists=[403, 500, 429, (5, [item("a", 1)]), (5, [item("a", 1)])],
        watches=[500, 429, [event("ADDED", item("b", 6)), "stall"]],
        until=lambda events, *_: ("ADDED", "b", "6") in events,
        raising=True,
    )
    assert events[0] == ("ADDED", "a", "1")
    assert "failed to handle Event(ADDED ConfigMap ns/a)" in caplog.text


async def test_informer_survives_garbage(play):
    events, _ = await play(
        lists=[(5, [{"metadata": "x"}]), (5, ["x"]), (6, [item("a", 1)])],
        watches=[[b"<html>\n"], ["stall"]],
        until=lambda events, asked, _: asked[-2:] == [("watch", "6"), ("watch", "6")],
    )
    assert events == [("ADDED", "a", "1")]


async def test_single_object_informer_skips_events_before_its_read(fault_server, tools, eventually):
    async def answer(asked, writer):
        if "watch=true" in asked.target:
            assert "fieldSelector=metadata.name%3Da" in asked.target
            assert "resourceVersion=" not in asked.target
            writer.write(tools.stream_head())
            for part in (
                event("ADDED", item("a", 3)),
                event("MODIFIED", item("a", 7)),
                event("MODIFIED", item("a", 9)),
            ):
                writer.write(tools.chunk(part))
            await writer.drain()
            await asyncio.sleep(60)
        writer.write(tools.http(item("a", 7)))

    server = await fault_server(answer)
    events = []
    async with Client(server.config) as client:
        informer = Informer(client, CONFIG_MAPS, namespace="ns", name="a")
        task = asyncio.create_task(informer.run(lambda event: events.append((event.kind, event.resource_version))))
        await eventually(lambda: events, lambda seen: ("MODIFIED", "9") in seen)
        task.cancel()
        await asyncio.wait([task])
    assert events == [("ADDED", "7"), ("MODIFIED", "9")]
