"""Owned objects: applied, kept, pruned, and never taken from another owner."""

from __future__ import annotations

import itertools

import pytest

from kplane.provider import Client, Conflict, Manager, ProviderError, Resource, Unreachable, controller
from kplane.provider.errors import ObjectTaken
from kplane.provider.objects import OWNER_LABEL, apply_owned, or_none, set_controller
from kplane.provider.objects.fingerprint import APPLIED_ANNOTATION
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, eventually
from kplane.provider.testing.store import Store

MAPS, SECRETS, SERVICES = "v1/ConfigMap", "v1/Secret", "v1/Service"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)


def widget(name="w"):
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": 1}}


def config_map(name, *, namespace=None, **data):
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def secret(name):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"a": "eA=="}}


@pytest.fixture
async def fake():
    cluster = FakeCluster("a", kinds=[WIDGETS])
    yield cluster
    await cluster.aclose()


@pytest.fixture
async def owner(fake):
    return await fake.client.create(WIDGETS, widget())


@pytest.fixture
def asked(fake, monkeypatch):
    """Return all requests, as method and last part of the path."""
    seen, request = [], Client._request

    async def note(self, method, path, **given):
        seen.append((method, path.rpartition("/")[2]))
        return await request(self, method, path, **given)

    monkeypatch.setattr(Client, "_request", note)
    return seen


async def data(fake, name, kind=MAPS):
    found = await or_none(fake.client.get(kind, name, namespace="default"))
    return None if found is None else found.get("data")


async def test_owned_objects_are_created_with_owner_label_and_namespace(fake, owner):
    applied = await apply_owned(fake, owner, [config_map("one", a="1"), secret("two")])
    assert [each["metadata"]["name"] for each in applied.objects] == ["one", "two"]
    assert (applied.written, applied.pruned) == (2, 0)
    for found in applied.objects:
        metadata = found["metadata"]
        assert metadata["namespace"] == "default"
        assert metadata["labels"] == {OWNER_LABEL: owner["metadata"]["uid"]}
        assert [each["uid"] for each in metadata["ownerReferences"]] == [owner["metadata"]["uid"]]


async def test_owned_objects_without_changes_cost_no_request(fake, owner, asked):
    described = [config_map("one", a="1"), secret("two")]
    first = await apply_owned(fake, owner, described)
    asked.clear()
    again = await apply_owned(fake, owner, described, kinds=[MAPS, SECRETS])
    assert (again.objects, again.written, again.pruned) == (first.objects, 0, 0)
    assert asked == []


async def test_changed_description_is_applied_and_drops_fields(fake, owner):
    await apply_owned(fake, owner, [config_map("one", a="1", b="2")])
    applied = await apply_owned(fake, owner, [config_map("one", b="3")])
    assert applied.objects[0]["data"] == {"b": "3"}
    assert applied.written == 1


async def test_changes_of_others_are_reverted_and_their_fields_stay(fake, owner, asked):
    described = [config_map("one", a="1")]
    await apply_owned(fake, owner, described)
    other = fake.make_client()
    await other.apply(MAPS, config_map("one", namespace="default", a="x", b="2"), field_manager="other", force=True)
    await eventually(lambda: fake.cache.get(MAPS, "one", namespace="default"), lambda found: found["data"]["a"] == "x")
    assert (await apply_owned(fake, owner, described)).objects[0]["data"] == {"a": "1", "b": "2"}
    asked.clear()
    assert (await apply_owned(fake, owner, described)).written == 0
    assert asked == []
    await other.aclose()


async def test_removed_label_or_owner_is_restored(fake, owner):
    described = [config_map("one", a="1")]
    await apply_owned(fake, owner, described)
    await fake.client.patch(MAPS, "one", {"metadata": {"labels": None}}, namespace="default")
    found = (await apply_owned(fake, owner, described)).objects[0]
    assert found["metadata"]["labels"] == {OWNER_LABEL: owner["metadata"]["uid"]}


async def test_objects_with_server_defaults_are_written_once(fake, owner, asked, monkeypatch):
    commit = Store._commit

    def complete(self, resource, before, after, *, gone=False):
        if resource.kind == "Service":
            after = {**after, "spec": {"type": "ClusterIP", **after["spec"]}}
        return commit(self, resource, before, after, gone=gone)

    monkeypatch.setattr(Store, "_commit", complete)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}
    first = await apply_owned(fake, owner, [service])
    assert first.written == 2
    asked.clear()
    assert (await apply_owned(fake, owner, [service])).written == 0
    assert asked == []
    await fake.client.patch(SERVICES, "s", {"spec": {"type": "NodePort"}}, namespace="default")
    await apply_owned(fake, owner, [service])
    asked.clear()
    assert (await apply_owned(fake, owner, [service])).written == 0
    assert asked == []


async def test_object_that_changes_with_each_write_is_an_error(fake, owner, monkeypatch):
    commit, numbers = Store._commit, itertools.count()

    def disturb(self, resource, before, after, *, gone=False):
        if resource.kind == "ConfigMap":
            after = {**after, "data": {**after["data"], "at": str(next(numbers))}}
        return commit(self, resource, before, after, gone=gone)

    monkeypatch.setattr(Store, "_commit", disturb)
    with pytest.raises(ProviderError, match="it changes with each write"):
        await apply_owned(fake, owner, [config_map("one", a="1")])


async def test_string_data_of_a_secret_is_applied_as_data(fake, owner):
    plain = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    await apply_owned(fake, owner, [{**plain, "stringData": {"a": "x", "b": "y"}}])
    applied = await apply_owned(fake, owner, [{**plain, "stringData": {"a": "x"}, "data": {"c": "eg=="}}])
    assert applied.objects[0]["data"] == {"a": "eA==", "c": "eg=="}


async def test_objects_no_longer_described_are_deleted(fake, owner, asked):
    await apply_owned(fake, owner, [config_map("one", a="1"), config_map("two"), secret("three")])
    asked.clear()
    applied = await apply_owned(fake, owner, [config_map("one", a="1")], kinds=[SECRETS])
    assert (applied.written, applied.pruned) == (0, 2)
    assert asked == [("DELETE", "two"), ("DELETE", "three")]
    assert (await apply_owned(fake, owner, [], kinds=[MAPS])).pruned == 1
    assert await data(fake, "one") is None


async def test_parts_of_an_owner_keep_objects_of_other_parts(fake, owner):
    await apply_owned(fake, owner, [config_map("one")], part="first")
    await apply_owned(fake, owner, [config_map("two")], part="second")
    assert (await apply_owned(fake, owner, [], kinds=[MAPS], part="first")).pruned == 1
    found = await fake.client.get(MAPS, "two", namespace="default")
    assert found["metadata"]["labels"] == {OWNER_LABEL: f"second.{owner['metadata']['uid']}"}


async def test_object_of_another_owner_is_not_changed_or_deleted(fake, owner):
    second = await fake.client.create(WIDGETS, widget("second"))
    await apply_owned(fake, second, [config_map("one", a="theirs")])
    with pytest.raises(ObjectTaken, match="is controlled by Widget second"):
        await apply_owned(fake, owner, [config_map("one", a="ours")], adopt=True)
    label = {"metadata": {"labels": {OWNER_LABEL: owner["metadata"]["uid"]}}}
    await fake.client.patch(MAPS, "one", label, namespace="default")
    assert (await apply_owned(fake, owner, [], kinds=[MAPS])).pruned == 0
    assert await data(fake, "one") == {"a": "theirs"}


async def test_object_with_a_new_owner_is_not_deleted(fake, owner):
    second = await fake.client.create(WIDGETS, widget("second"))
    await apply_owned(fake, owner, [config_map("one")])
    fake.client.ignore_writes(fake.cache.observe)
    found = await fake.client.get(MAPS, "one", namespace="default")
    found["metadata"]["ownerReferences"] = []
    set_controller(second, found)
    stale = await fake.cache.list(MAPS)
    await fake.client.replace(MAPS, found)

    async def behind(*_, **__):
        return stale

    fake.cache.list = behind
    assert (await apply_owned(fake, owner, [], kinds=[MAPS])).pruned == 0
    assert await fake.client.exists(MAPS, "one", namespace="default")


async def test_object_without_an_owner_is_adopted_only_on_request(fake, owner):
    await fake.client.create(MAPS, config_map("one", namespace="default", a="1", b="2"))
    with pytest.raises(ObjectTaken, match="has no controller"):
        await apply_owned(fake, owner, [config_map("one", a="3")])
    assert await data(fake, "one") == {"a": "1", "b": "2"}
    await apply_owned(fake, owner, [config_map("one", a="3")], adopt=True)
    assert await data(fake, "one") == {"a": "3", "b": "2"}
    assert (await apply_owned(fake, owner, [config_map("one", a="3")])).written == 0


async def test_object_created_meanwhile_keeps_its_fields(fake, owner, monkeypatch):
    get = Client.get

    async def create_after(self, kind, key, **given):
        try:
            return await get(self, kind, key, **given)
        finally:
            await or_none(other.create(MAPS, config_map("one", namespace="default", a="theirs")))

    other = fake.make_client()
    monkeypatch.setattr(Client, "get", create_after)
    with pytest.raises(Conflict):
        await apply_owned(fake, owner, [config_map("one", a="ours")])
    monkeypatch.undo()
    assert await data(fake, "one") == {"a": "theirs"}
    await other.aclose()


async def test_object_being_deleted_is_not_changed(fake, owner):
    await apply_owned(fake, owner, [config_map("one", a="1")])
    held = {"metadata": {"finalizers": ["example.com/x"]}}
    await fake.client.patch(MAPS, "one", held, namespace="default")
    await fake.client.delete(MAPS, "one", namespace="default")
    assert (await apply_owned(fake, owner, [config_map("one", a="2")])).written == 0
    assert (await apply_owned(fake, owner, [], kinds=[MAPS])).pruned == 0


async def test_invalid_descriptions_are_refused_before_a_write(fake, owner, asked):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    elsewhere = config_map("two", namespace="kube-public")
    for described, problem in [
        ([config_map("one"), config_map("one")], "two objects of one kind and name"),
        ([config_map("one"), node], "cannot own a cluster-scoped Node"),
        ([config_map("one"), elsewhere], "owns objects of that namespace"),
    ]:
        with pytest.raises(ProviderError, match=problem):
            await apply_owned(fake, owner, described)
    with pytest.raises(ProviderError, match="cannot be a part"):
        await apply_owned(fake, owner, [], part="a/b")
    assert asked == []


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("failing", [0, 1, 2, 3])
async def test_interrupted_writes_are_completed_by_the_next_process(fake, owner, failing, takes_effect):
    """A process may end after each of its writes. The next process starts without memory."""
    await apply_owned(fake, owner, [config_map("old-1"), config_map("old-2")])
    described = [config_map("new-1", a="1"), config_map("new-2", a="2")]
    verb, number = ("patch", failing) if failing < 2 else ("delete", failing - 2)
    request, count = Client._request, itertools.count()

    async def cut(self, method, path, **given):
        if method == {"patch": "PATCH", "delete": "DELETE"}[verb] and next(count) == number:
            error = Unreachable("the process ended", kind="connect")
            fake.fail(error, verb=verb, kind=MAPS, takes_effect=takes_effect)
        return await request(self, method, path, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, "_request", cut)
        with pytest.raises(Unreachable):
            await apply_owned(fake, owner, described)
    names = {each["metadata"]["name"] for each in (await fake.client.list(MAPS, namespace="default")).items}
    assert failing >= 2 or {"old-1", "old-2"} <= names
    await eventually(
        lambda: {each.name for each in fake.cache.informer(MAPS).entries()},
        lambda cached: cached == names,
    )
    await apply_owned(fake, owner, described)
    names = {each["metadata"]["name"] for each in (await fake.client.list(MAPS, namespace="default")).items}
    assert names == {"new-1", "new-2"}


async def test_drift_is_reverted_by_owns(fake):
    fleet = ClustersProvider()
    manager = Manager(None, fleet, name="test")

    async def reconcile(request, cluster):
        owner = await or_none(cluster.cache.get(WIDGETS, request))
        if owner is not None:
            await apply_owned(cluster, owner, [config_map("one", a="1")])

    controller(manager).for_(WIDGETS).owns(MAPS).build(reconcile)
    async with manager:
        await fleet.add(fake)
        await fake.client.create(WIDGETS, widget())
        other = fake.make_client()
        await eventually(lambda: data(fake, "one"), lambda found: found == {"a": "1"})
        await other.patch(MAPS, "one", {"data": {"a": "drifted"}}, namespace="default")
        await eventually(lambda: data(fake, "one"), lambda found: found == {"a": "1"})
        await other.delete(MAPS, "one", namespace="default")
        await eventually(lambda: data(fake, "one"), lambda found: found == {"a": "1"})
        await other.aclose()


async def test_annotation_holds_no_content_of_the_object(fake, owner):
    found = (await apply_owned(fake, owner, [secret("s")])).objects[0]
    assert len(found["metadata"]["annotations"][APPLIED_ANNOTATION]) == 16
