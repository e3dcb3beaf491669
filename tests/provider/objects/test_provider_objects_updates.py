"""Reads of missing objects, retries, create or update, status, finalizers."""

from __future__ import annotations

import pytest

from kplane.provider import AlreadyExists, Client, Conflict, Invalid, NotFound, ProviderError, Resource
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.objects import (
    add_finalizer,
    apply_owned,
    create_or_update,
    or_none,
    remove_finalizer,
    retry_on_conflict,
    set_condition,
    update_status,
)
from kplane.provider.testing import FakeCluster

MAPS = "v1/ConfigMap"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
WIDGET = "example.com/v1/Widget"
FINALIZER = "example.com/cleanup"


def body(kind, name="m", **fields):
    api_version, _, kind = kind.rpartition("/")
    metadata = {"name": name, "namespace": "default", **fields.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


@pytest.fixture
async def fake():
    cluster = FakeCluster("a", kinds=[WIDGETS])
    yield cluster
    await cluster.aclose()


@pytest.fixture
def writes(fake, monkeypatch):
    """Return the methods of all requests but GET."""
    seen, request = [], Client._request

    async def note(self, method, path, **given):
        if method != "GET":
            seen.append(method)
        return await request(self, method, path, **given)

    monkeypatch.setattr(Client, "_request", note)
    return seen


def set_data(**data):
    def mutate(found):
        found["data"] = data

    return mutate


def conflict():
    return Conflict(409, "Conflict", "it has changed")


async def test_or_none_returns_none_for_a_missing_object(fake):
    await fake.client.create(MAPS, body(MAPS))
    assert (await or_none(fake.client.get(MAPS, "m", namespace="default")))["kind"] == "ConfigMap"
    assert await or_none(fake.cache.get(MAPS, "other", namespace="default")) is None
    assert await or_none(fake.client.delete(MAPS, "other", namespace="default")) is None


async def test_or_none_raises_for_a_missing_kind():
    async def answer():
        raise NotFound(404, "Not Found", "the server answered 404 page not found")

    with pytest.raises(NotFound):
        await or_none(answer())


async def test_create_or_update_writes_only_what_differs(fake, writes):
    described = body(MAPS, metadata={"labels": {"app": "web"}})
    created = await create_or_update(fake.client, described, set_data(a="1"))
    assert (created.result, created.object["data"], created.object["metadata"]["labels"]) == (
        "created",
        {"a": "1"},
        {"app": "web"},
    )
    assert "data" not in described
    assert (await create_or_update(fake.client, described, set_data(a="1"))).result == "unchanged"
    updated = await create_or_update(fake.client, described, set_data(a="2"))
    assert (updated.result, updated.object["data"]) == ("updated", {"a": "2"})
    assert writes == ["POST", "PUT"]


async def test_create_or_update_keeps_fields_of_others(fake):
    await fake.client.create(MAPS, body(MAPS, data={"theirs": "1"}))

    def mutate(found):
        found["data"]["ours"] = "2"

    outcome = await create_or_update(fake.client, body(MAPS), mutate)
    assert outcome.object["data"] == {"theirs": "1", "ours": "2"}


async def test_create_or_update_retries_a_conflict_with_the_present_state(fake):
    await create_or_update(fake.client, body(MAPS), set_data(a="1"))
    stale = await fake.cache.get(MAPS, "m", namespace="default")
    fake.client.ignore_writes(fake.cache.observe)
    await fake.client.patch(MAPS, "m", {"data": {"theirs": "1"}}, namespace="default")
    seen = []

    def mutate(found):
        seen.append(dict(found["data"]))
        found["data"]["a"] = "2"

    class Stale:
        async def get(self, kind, name, *, namespace):
            return stale

    outcome = await create_or_update(fake.client, body(MAPS), mutate, cache=Stale())
    assert outcome.object["data"] == {"a": "2", "theirs": "1"}
    assert seen == [{"a": "1"}, {"a": "1", "theirs": "1"}]


async def test_create_or_update_finds_an_object_that_was_created_meanwhile(fake):
    await fake.client.create(MAPS, body(MAPS, data={"a": "1"}))
    fake.fail(NotFound(404, "NotFound", "not yet"), verb="get", kind=MAPS)
    assert (await create_or_update(fake.client, body(MAPS), set_data(a="1"))).result == "unchanged"


async def test_create_or_update_gives_up_after_five_conflicts(fake):
    await fake.client.create(MAPS, body(MAPS))
    fake.fail(conflict(), verb="update", kind=MAPS, times=5)
    with pytest.raises(Conflict):
        await create_or_update(fake.client, body(MAPS), set_data(a="1"))
    assert (await create_or_update(fake.client, body(MAPS), set_data(a="1"))).result == "updated"


async def test_create_or_update_with_a_cache_sends_no_request_if_equal(fake, monkeypatch):
    await create_or_update(fake.client, body(MAPS), set_data(a="1"), cache=fake.cache)

    async def refuse(self, method, path, **given):
        raise AssertionError(f"{method} {path}")

    monkeypatch.setattr(Client, "_request", refuse)
    outcome = await create_or_update(fake.client, body(MAPS), set_data(a="1"), cache=fake.cache)
    assert outcome.result == "unchanged"


async def test_create_or_update_refuses_an_invalid_mutate(fake):
    def rename(found):
        found["metadata"]["name"] = "other"

    async def later(found):
        return None

    with pytest.raises(ProviderError, match="kind and names must stay"):
        await create_or_update(fake.client, body(MAPS), rename)
    with pytest.raises(ProviderError, match="coroutine function"):
        await create_or_update(fake.client, body(MAPS), later)
    with pytest.raises(ProviderError, match="no apiVersion or no kind"):
        await create_or_update(fake.client, {"metadata": {"name": "m"}}, rename)


@pytest.mark.parametrize(
    "error",
    [
        AlreadyExists(409, "AlreadyExists", "it is there"),
        Conflict(409, "Conflict", "x", {"causes": [{"reason": "FieldManagerConflict", "field": ".data.a"}]}),
        Invalid(422, "Invalid", "x"),
    ],
)
async def test_retry_on_conflict_raises_other_errors_at_once(error):
    calls = []

    async def attempt():
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        await retry_on_conflict(attempt)
    assert len(calls) == 1


async def test_retry_on_conflict_returns_the_first_success():
    errors = [conflict(), conflict()]

    async def attempt():
        if errors:
            raise errors.pop()
        return "done"

    assert await retry_on_conflict(attempt) == "done"


def ready(status):
    set_condition(status, "Ready", value=True, reason="Done")


async def test_update_status_writes_once_and_keeps_conditions_of_others(fake, writes):
    found = await fake.client.create(WIDGETS, body(WIDGET))
    theirs = {
        "type": "Theirs",
        "status": "True",
        "reason": "X",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await fake.client.patch(
        WIDGETS, "m", {"status": {"conditions": [theirs]}}, namespace="default", subresource="status"
    )
    written = await update_status(fake.client, found, ready)
    assert [condition["type"] for condition in written["status"]["conditions"]] == ["Theirs", "Ready"]
    writes.clear()
    assert await update_status(fake.client, written, ready) == written
    assert writes == []


async def test_update_status_skips_missing_and_recreated_objects(fake):
    found = await fake.client.create(WIDGETS, body(WIDGET))
    await fake.client.delete(WIDGETS, "m", namespace="default")
    assert await update_status(fake.client, found, ready) is None
    await fake.client.create(WIDGETS, body(WIDGET))
    assert await update_status(fake.client, found, ready) is None
    assert "status" not in await fake.client.get(WIDGETS, "m", namespace="default")


async def test_update_status_raises_for_a_kind_without_status(fake):
    found = await fake.client.create(CONFIG_MAPS, body(MAPS))
    with pytest.raises(ProviderError, match=r"needs subresources.status"):
        await update_status(fake.client, found, ready)


async def finalizers(fake):
    found = await or_none(fake.client.get(WIDGETS, "m", namespace="default"))
    return None if found is None else found["metadata"].get("finalizers", [])


async def test_finalizers_are_added_and_removed_once(fake, writes):
    found = await fake.client.create(WIDGETS, body(WIDGET, metadata={"finalizers": ["example.com/theirs"]}))
    found = await add_finalizer(fake.client, found, FINALIZER)
    assert await add_finalizer(fake.client, found, FINALIZER) == found
    assert await finalizers(fake) == ["example.com/theirs", FINALIZER]
    await remove_finalizer(fake.client, found, FINALIZER)
    await remove_finalizer(fake.client, {**found, "metadata": {**found["metadata"], "finalizers": []}}, FINALIZER)
    assert await finalizers(fake) == ["example.com/theirs"]
    assert writes == ["POST", "PATCH", "PATCH"]


async def test_finalizers_of_others_survive_a_conflict(fake):
    found = await fake.client.create(WIDGETS, body(WIDGET))
    await fake.client.patch(WIDGETS, "m", {"metadata": {"finalizers": ["example.com/new"]}}, namespace="default")
    await add_finalizer(fake.client, found, FINALIZER)
    assert await finalizers(fake) == ["example.com/new", FINALIZER]


async def test_removal_of_the_last_finalizer_can_be_repeated(fake):
    found = await fake.client.create(WIDGETS, body(WIDGET, metadata={"finalizers": [FINALIZER]}))
    held = await fake.client.delete(WIDGETS, "m", namespace="default")
    await remove_finalizer(fake.client, held, FINALIZER)
    assert await finalizers(fake) is None
    await remove_finalizer(fake.client, found, FINALIZER)


async def test_object_being_deleted_gets_no_finalizer(fake):
    found = await fake.client.create(WIDGETS, body(WIDGET, metadata={"finalizers": ["example.com/theirs"]}))
    await fake.client.delete(WIDGETS, "m", namespace="default")
    with pytest.raises(ProviderError, match="is being deleted"):
        await add_finalizer(fake.client, found, FINALIZER)
    await fake.client.patch(WIDGETS, "m", {"metadata": {"finalizers": None}}, namespace="default")
    with pytest.raises(NotFound, match="is gone"):
        await add_finalizer(fake.client, found, FINALIZER)


@pytest.mark.parametrize(
    "use",
    [
        lambda fake, found: add_finalizer(fake.client, found, FINALIZER),
        lambda fake, found: remove_finalizer(fake.client, found, FINALIZER),
        lambda fake, found: update_status(fake.client, found, dict.clear),
        lambda fake, found: apply_owned(fake, found, []),
    ],
)
async def test_instance_that_is_no_object_is_refused_with_the_remedy(fake, use):
    class Widget:
        pass

    with pytest.raises(ProviderError, match=r"takes .* and Widget is none: read the object by the name of its kind"):
        await use(fake, Widget())
