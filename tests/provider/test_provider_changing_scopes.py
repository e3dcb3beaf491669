"""Caches whose scope gains and loses namespaces while they run."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import CacheScope, ClusterNotReady, ProviderError
from kplane.provider.cache.namespaces import Namespaces
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.errors import Forbidden
from kplane.provider.testing import FakeCluster


def secret(name):
    return {"metadata": {"name": name}}


def names(found):
    return sorted((obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in found)


class Watched:
    """A fake cluster with Secrets in the namespaces a, b and c, and a cache of a scope."""

    def __init__(self, cluster, namespaces):
        self.cluster = cluster
        self.namespaces = namespaces
        self.cache = cluster.cache
        self.informer = self.cache.informer(SECRETS, scope=CacheScope(namespaces=namespaces))
        self.events = []
        self.registration = self.informer.add_handler(self.see)

    def see(self, event):
        self.events.append((event.kind, event.namespace, event.name, event.initial))

    def take(self):
        taken, self.events = self.events, []
        return sorted(taken)

    def watches(self):
        return sorted(
            task.get_name().rpartition(" ")[2] for task in asyncio.all_tasks() if "watch secrets" in task.get_name()
        )


@pytest.fixture
async def cluster():
    made = FakeCluster("fake")
    for namespace in ("a", "b", "c"):
        await made.client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await made.client.create(SECRETS, secret("one"), namespace=namespace)
    yield made
    await made.aclose()


@pytest.fixture
async def watched(cluster):
    made = Watched(cluster, Namespaces("a", "b"))
    await asyncio.wait_for(made.registration.synced.wait(), 30)
    assert made.take() == [("ADDED", "a", "one", True), ("ADDED", "b", "one", True)]
    return made


class Gate:
    """A server that holds its answers for a namespace until `opened` is set, or refuses them if `refused`."""

    def __init__(self, cluster, namespace, monkeypatch):
        self.opened = asyncio.Event()
        self.refused = False
        real = cluster.client.watch

        def watch(kind, **options):
            made = real(kind, **options)
            if options.get("namespace") == namespace:
                opening = made.open

                async def open_later():
                    if self.refused:
                        raise Forbidden(403, "Forbidden", "not for you")
                    await self.opened.wait()
                    await opening()

                made.open = open_later
            return made

        monkeypatch.setattr(cluster.client, "watch", watch)


async def test_added_namespace_is_read_and_followed(watched, cluster):
    watched.namespaces.add("c")
    await asyncio.wait_for(watched.informer.wait_synced(namespace="c"), 30)
    assert names(watched.informer.list()) == [("a", "one"), ("b", "one"), ("c", "one")]
    assert watched.take() == [("ADDED", "c", "one", True)]
    assert watched.watches() == ["a", "b", "c"]


async def test_added_namespace_delivers_later_changes(watched, cluster, eventually):
    watched.namespaces.add("c")
    await asyncio.wait_for(watched.informer.wait_synced(namespace="c"), 30)
    watched.take()
    await cluster.client.create(SECRETS, secret("two"), namespace="c")
    await eventually(lambda: watched.events == [("ADDED", "c", "two", False)])


async def test_removed_namespace_sends_deleted_events(watched, cluster, eventually):
    watched.namespaces.remove("b")
    assert watched.take() == [("DELETED", "b", "one", False)]
    assert names(watched.informer.list()) == [("a", "one")]
    with pytest.raises(ProviderError, match="outside of the cache, which keeps secrets in a: widen"):
        watched.informer.list(namespace="b")
    await eventually(lambda: watched.watches() == ["a"])
    await cluster.client.create(SECRETS, secret("two"), namespace="b")
    await cluster.client.create(SECRETS, secret("two"), namespace="a")
    await eventually(lambda: watched.events)
    assert watched.take() == [("ADDED", "a", "two", False)]


async def test_namespace_added_again_is_listed_again(watched, cluster):
    watched.namespaces.remove("b")
    watched.namespaces.add("b")
    assert watched.take() == [("DELETED", "b", "one", False)]
    await asyncio.wait_for(watched.informer.wait_synced(namespace="b"), 30)
    assert watched.take() == [("ADDED", "b", "one", True)]


async def test_scope_allows_removal_of_all_namespaces(watched):
    watched.namespaces.remove("a", "b", "unknown")
    assert watched.informer.list() == []
    assert str(watched.informer) == "secrets in no namespace"
    assert watched.informer.state == "ready"


async def test_scope_without_namespaces_is_synced_and_empty(cluster):
    informer = cluster.cache.informer(SECRETS, scope=CacheScope(namespaces=Namespaces()))
    await asyncio.wait_for(informer.wait_synced(), 30)
    assert informer.list() == []


async def test_reads_of_other_namespaces_do_not_wait_for_added_namespace(watched, cluster, monkeypatch):
    gate = Gate(cluster, "c", monkeypatch)
    watched.namespaces.add("c")
    assert watched.informer.synced.is_set()
    assert watched.informer.is_synced(namespace="a")
    assert not watched.informer.is_synced(namespace="c")
    await asyncio.wait_for(watched.informer.wait_synced(), 30)
    await asyncio.wait_for(watched.informer.wait_synced(namespace="a"), 30)
    # The cluster is as ready as before.
    assert watched.informer.state == cluster.cache.state == "ready"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watched.informer.wait_synced(namespace="c"), 0.1)
    gate.opened.set()
    await asyncio.wait_for(watched.informer.wait_synced(namespace="c"), 30)


async def test_refusal_of_added_namespace_leaves_others_readable(watched, cluster, monkeypatch):
    Gate(cluster, "c", monkeypatch).refused = True
    watched.namespaces.add("c")
    with pytest.raises(Forbidden, match="does not let secrets in c be read: not for you"):
        await asyncio.wait_for(watched.informer.wait_synced(namespace="c", unless_refused=True), 30)
    await watched.informer.wait_synced(namespace="a", unless_refused=True)
    assert names(watched.informer.list()) == [("a", "one"), ("b", "one")]


async def test_wait_for_removed_namespace_raises(watched, cluster, monkeypatch):
    Gate(cluster, "c", monkeypatch)
    watched.namespaces.add("c")
    waiting = asyncio.ensure_future(watched.informer.wait_synced(namespace="c"))
    await asyncio.sleep(0)
    watched.namespaces.remove("c")
    with pytest.raises(ProviderError, match="outside of the cache"):
        await asyncio.wait_for(waiting, 30)


async def test_scope_changes_while_stopped_apply_after_start(watched, cluster):
    await watched.informer.stop()
    watched.namespaces.add("c")
    watched.namespaces.remove("a")
    with pytest.raises(ClusterNotReady):
        watched.informer.list()
    watched.informer.start()
    await asyncio.wait_for(watched.informer.wait_synced(), 30)
    assert names(watched.informer.list()) == [("b", "one"), ("c", "one")]


async def test_closed_cache_leaves_no_task_and_no_follower(watched, cluster):
    await watched.informer.aclose()
    assert watched.watches() == []
    watched.namespaces.add("c")
    assert watched.watches() == []


class TestCacheReads:
    """Reads of a cache while its scope changes, within the deadline of the caller."""

    @pytest.fixture
    def namespaces(self, cluster):
        namespaces = Namespaces("a")
        cluster.cache._scope_of = lambda _resource: CacheScope(namespaces=namespaces)
        return namespaces

    async def test_list_of_added_namespace_waits_for_sync(self, cluster, namespaces, monkeypatch):
        gate = Gate(cluster, "b", monkeypatch)
        assert names(await cluster.cache.list(SECRETS)) == [("a", "one")]
        namespaces.add("b")
        assert names(await cluster.cache.list(SECRETS)) == [("a", "one")]
        assert names(await cluster.cache.list(SECRETS, namespace="a")) == [("a", "one")]
        listing = asyncio.ensure_future(cluster.cache.list(SECRETS, namespace="b"))
        getting = asyncio.ensure_future(cluster.cache.get(SECRETS, "one", namespace="b"))
        done, _ = await asyncio.wait({listing, getting}, timeout=0.1)
        assert not done
        gate.opened.set()
        assert names(await listing) == [("b", "one")]
        assert (await getting)["metadata"]["namespace"] == "b"
        assert names(await cluster.cache.list(SECRETS)) == [("a", "one"), ("b", "one")]

    async def test_list_of_added_namespace_ends_at_deadline(self, cluster, namespaces, monkeypatch):
        Gate(cluster, "b", monkeypatch)
        await cluster.cache.list(SECRETS)
        namespaces.add("b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await cluster.cache.list(SECRETS, namespace="b")
        cluster.cache._sync_timeout_seconds = 0.1
        with pytest.raises(ClusterNotReady, match=r"the secrets of .* are not known yet"):
            await cluster.cache.list(SECRETS, namespace="b")


class TestNamespaces:
    def test_scope_names_are_sorted_and_unique(self):
        namespaces = Namespaces("b", "a", "b")
        assert [*namespaces] == ["a", "b"]
        assert len(namespaces) == 2
        assert "a" in namespaces
        assert repr(namespaces) == "Namespaces('a', 'b')"

    def test_scope_notifies_followers_of_each_change_once(self):
        namespaces, told = Namespaces("a"), []
        unfollow = namespaces.follow(lambda name: told.append(f"+{name}"), lambda name: told.append(f"-{name}"))
        namespaces.add("a", "b")
        namespaces.remove("a", "c")
        unfollow()
        namespaces.add("d")
        assert told == ["+b", "-a"]

    def test_scope_refuses_empty_namespace_name(self):
        with pytest.raises(ProviderError, match="its name is empty"):
            Namespaces("")
