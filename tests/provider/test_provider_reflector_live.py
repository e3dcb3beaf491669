"""Informers of a namespace, a label or a name against a real kube-apiserver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from kplane.provider import AlreadyExists, Cache, Client, Informer, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.errors import Forbidden
from kplane.workloads import find_processes

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def running(following, handler=None):
    task = asyncio.create_task(following.run(handler))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def recorder():
    events = []
    return events, lambda event: events.append((event.kind, event.name))


async def test_informer_mirrors_a_collection(client, namespace, eventually):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "old"}}, namespace=namespace)
    events, handler = recorder()
    following = Informer(client, CONFIG_MAPS, namespace=namespace)
    async with running(following, handler):
        await asyncio.wait_for(following.synced.wait(), 60)
        assert following.entry("old", namespace=namespace)
        await client.create(CONFIG_MAPS, {"metadata": {"name": "new"}}, namespace=namespace)
        await client.patch(CONFIG_MAPS, "new", {"data": {"x": "1"}}, namespace=namespace)
        await client.delete(CONFIG_MAPS, "new", namespace=namespace)
        await eventually(lambda: events, lambda seen: ("DELETED", "new") in seen)
    assert [event for event in events if event[1] == "new"] == [
        ("ADDED", "new"),
        ("MODIFIED", "new"),
        ("DELETED", "new"),
    ]
    assert following.entry("new", namespace=namespace) is None


async def test_informer_reports_deletions_missed_by_its_watch(client, namespace, eventually):
    for name in ("stays", "goes"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"mine": "1"}}}, namespace=namespace)
    events, handler = recorder()
    following = Informer(client, CONFIG_MAPS, namespace=namespace, label_selector="mine", relist_seconds=1.0)
    async with running(following, handler):
        await asyncio.wait_for(following.synced.wait(), 60)
        # The informer missed the event of the deletion.
        ghost = {"metadata": {"name": "ghost", "namespace": namespace, "uid": "u"}}
        following._store.put(following._reader.encode(ghost))
        await client.delete(CONFIG_MAPS, "goes", namespace=namespace)
        await eventually(lambda: events, lambda seen: {("DELETED", "ghost"), ("DELETED", "goes")} <= set(seen))
        assert set(following.keys()) == {(namespace, "stays")}


async def test_informer_continues_after_api_server_was_killed(api_server, client, namespace, eventually):
    events, handler = recorder()
    following = Informer(client, CONFIG_MAPS, namespace=namespace)
    seen = []
    async with running(following, handler), contextlib.aclosing(Cache(client)) as cache:
        informer = cache.informer(CONFIG_MAPS)
        informer.add_handler(
            lambda event: event.namespace == namespace and seen.append((event.kind, event.namespace, event.name))
        )
        await asyncio.wait_for(following.synced.wait(), 60)
        await asyncio.wait_for(informer.wait_synced(), 60)
        (server,) = [
            pid
            for pid in find_processes(api_server.directory)
            if b"kube-apiserver" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        ]
        os.kill(server, signal.SIGKILL)
        with contextlib.suppress(ProviderError):
            await client.probe()

        async def create():
            # A response may be lost with the last connection of the server.
            with contextlib.suppress(AlreadyExists):
                await client.create(CONFIG_MAPS, {"metadata": {"name": "after"}}, namespace=namespace)
            return True

        await eventually(create)
        await eventually(lambda: events, lambda told: ("ADDED", "after") in told)
        await eventually(lambda: ("ADDED", namespace, "after") in seen)
        await eventually(lambda: cache.state == "ready")
    assert [event for event in events if event[1] == "after"] == [("ADDED", "after")]
    assert len(set(seen)) == len(seen)
    assert not any(event == "DELETED" for event, *_ in seen)
    assert not any(event == "DELETED" for event, _ in events)


class Counting(Client):
    """A client that counts its reads."""

    reads = 0

    async def get(self, *args, **options):
        self.reads += 1
        return await super().get(*args, **options)


async def test_single_object_informer_needs_permission_by_name_only(client, namespace, service_account, eventually):
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "watch"]}]
    events, handler = recorder()
    async with Counting(await service_account(rules)) as limited:
        with pytest.raises(Forbidden):
            await limited.list(SECRETS, namespace=namespace)
        with pytest.raises(Forbidden):
            await limited.get(SECRETS, "other", namespace=namespace)
        following = Informer(limited, SECRETS, namespace=namespace, name="mine", watch_seconds=1.0)
        async with running(following, handler):
            await asyncio.wait_for(following.synced.wait(), 60)
            assert following.keys() == []
            await client.create(SECRETS, {"metadata": {"name": "other"}}, namespace=namespace)
            await client.create(SECRETS, {"metadata": {"name": "mine"}}, namespace=namespace)
            await eventually(lambda: events, lambda seen: ("ADDED", "mine") in seen)
            await client.patch(SECRETS, "mine", {"stringData": {"x": "1"}}, namespace=namespace)
            await eventually(lambda: events, lambda seen: ("MODIFIED", "mine") in seen)
            # The informer repeats no event after the end of a watch.
            reads = limited.reads
            await eventually(lambda: limited.reads, lambda now: now >= reads + 2)
            await client.delete(SECRETS, "mine", namespace=namespace)
            await eventually(lambda: events, lambda seen: ("DELETED", "mine") in seen)
    assert events == [("ADDED", "mine"), ("MODIFIED", "mine"), ("DELETED", "mine")]


async def test_informer_starts_when_permission_is_granted(client, namespace, service_account, eventually):
    await client.create(SECRETS, {"metadata": {"name": "mine"}}, namespace=namespace)
    config = await service_account([])
    async with Client(config) as limited:
        following = Informer(limited, SECRETS, namespace=namespace, name="mine")
        async with running(following):
            with pytest.raises(Forbidden):
                await limited.get(SECRETS, "mine", namespace=namespace)
            assert not following.synced.is_set()
            from kplane.provider.client.resources import ROLES

            (role,) = (await client.list(ROLES, namespace=namespace)).items
            role["rules"] = [
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "watch"]}
            ]
            await client.replace(ROLES, role)
            await eventually(lambda: set(following.keys()), lambda keys: keys == {(namespace, "mine")})
