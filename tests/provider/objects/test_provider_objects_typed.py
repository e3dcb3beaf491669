"""Instances of classes: owners, finalizers, status, conditions, updates, waits."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from kplane.provider import Client, Conflict, NotFound, ProviderError, Resource, typed_kind
from kplane.provider.errors import DecodeFailed, ObjectTaken
from kplane.provider.objects import (
    OWNER_LABEL,
    Condition,
    Conditions,
    add_finalizer,
    add_owner,
    apply_owned,
    controller_of,
    create_or_update,
    find_condition,
    is_condition_true,
    is_controlled_by,
    or_none,
    owner_reference,
    remove_finalizer,
    set_condition,
    set_controller,
    update_status,
    wait_for,
)
from kplane.provider.testing import FakeCluster

KIND, MAPS = "example.com/v1/Site", "v1/ConfigMap"
SITES = Resource("example.com/v1", "Site", "sites", namespaced=True)
FINALIZER, THEIRS = "example.com/ours", "example.com/theirs"
THEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
kind = typed_kind(KIND, plural="sites", namespaced=True)


class ModelSpec(pydantic.BaseModel, frozen=True):
    size: int = 1
    colour: str | None = None


class ModelStatus(pydantic.BaseModel, frozen=True):
    ready: int = 0
    conditions: Conditions = []


@kind
class Model(pydantic.BaseModel, frozen=True):
    metadata: dict[str, Any]
    spec: ModelSpec = ModelSpec()
    status: ModelStatus = ModelStatus()


class StructSpec(msgspec.Struct, frozen=True):
    size: int = 1
    colour: str | None = None


class StructStatus(msgspec.Struct, frozen=True):
    ready: int = 0
    conditions: Conditions = []


@kind
class Struct(msgspec.Struct, frozen=True):
    metadata: dict[str, Any]
    spec: StructSpec = StructSpec()
    status: StructStatus = StructStatus()


@dataclass
class DataSpec:
    size: int = 1
    colour: str | None = None


@dataclass
class DataStatus:
    ready: int = 0
    conditions: Conditions | None = None


@dataclass
class DataMeta:
    """Metadata with some fields of Kubernetes, without finalizers."""

    name: str
    namespace: str
    uid: str | None = None
    generation: int | None = None
    ownerReferences: list[dict[str, Any]] | None = None  # noqa: N815 - as in JSON


@kind
@dataclass
class Data:
    metadata: DataMeta
    spec: DataSpec = data_field(default_factory=DataSpec)
    status: DataStatus | None = None


class Own:
    """A class with its own methods from_dict and to_dict."""

    def __init__(self, metadata: dict[str, Any], spec: DataSpec, status: dict[str, Any]) -> None:
        self.metadata = metadata
        self.spec = spec
        self.status = status

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.to_dict() == other.to_dict()

    __hash__ = None

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Own:
        return cls(found["metadata"], msgspec.convert(found.get("spec", {}), DataSpec), found.get("status", {}))

    def to_dict(self) -> dict[str, Any]:
        return {"metadata": self.metadata, "spec": msgspec.to_builtins(self.spec), "status": self.status}


typed_kind(KIND, plural="sites", namespaced=True, decode=Own.from_dict, encode=Own.to_dict)(Own)

CLASSES = [Model, Struct, Data, Own]
classes = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def new(cls, name="s"):
    return {
        Model: lambda: Model(metadata={"name": name, "namespace": "default"}),
        Struct: lambda: Struct({"name": name, "namespace": "default"}),
        Data: lambda: Data(DataMeta(name, "default")),
        Own: lambda: Own({"name": name, "namespace": "default"}, DataSpec(), {}),
    }[cls]()


def field(found, name):
    metadata = found.metadata
    return metadata.get(name) if isinstance(metadata, dict) else getattr(metadata, name, None)


@pytest.fixture
async def fake():
    cluster = FakeCluster("a", kinds=[SITES])
    yield cluster
    await cluster.aclose()


@pytest.fixture
def asked(fake, monkeypatch):
    """Return the methods of all requests."""
    seen, request = [], Client._request

    async def note(self, method, path, **given):
        seen.append(method)
        return await request(self, method, path, **given)

    monkeypatch.setattr(Client, "_request", note)
    return seen


async def stored(fake):
    return await fake.client.get(SITES, "s", namespace="default")


async def put(fake, path, value, **given):
    """Change a field that classes do not keep, as another program would."""
    await fake.client.patch(SITES, "s", {path: value}, namespace="default", **given)


@classes
async def test_finalizer_of_an_instance_is_added_and_removed(fake, cls):
    site = await fake.client.create(new(cls))
    await put(fake, "metadata", {"finalizers": [THEIRS]})
    site = await add_finalizer(fake.client, site, FINALIZER)
    assert type(site) is cls
    assert (await stored(fake))["metadata"]["finalizers"] == [THEIRS, FINALIZER]
    await remove_finalizer(fake.client, site, FINALIZER)
    assert (await stored(fake))["metadata"]["finalizers"] == [THEIRS]


async def test_finalizer_that_an_instance_has_costs_no_request(fake, asked):
    site = await add_finalizer(fake.client, await fake.client.create(new(Model)), FINALIZER)
    asked.clear()
    assert await add_finalizer(fake.client, site, FINALIZER) is site
    assert asked == []


async def test_finalizer_of_an_instance_that_is_gone_raises_not_found(fake):
    site = await fake.client.create(new(Struct))
    await fake.client.delete(SITES, "s", namespace="default")
    with pytest.raises(NotFound, match="Site default/s is gone"):
        await add_finalizer(fake.client, site, FINALIZER)
    await remove_finalizer(fake.client, site, FINALIZER)


@classes
async def test_objects_of_an_instance_are_applied_and_pruned(fake, asked, cls):
    owner = await fake.client.create(new(cls))
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}}
    applied = await apply_owned(fake, owner, [config_map, new(cls, "child")])
    found, child = applied.objects
    assert (found["data"], type(child)) == ({"a": "1"}, cls)
    uid = field(owner, "uid")
    raw = await fake.client.get(SITES, "child", namespace="default")
    for each in (found, raw):
        assert each["metadata"]["labels"] == {OWNER_LABEL: uid}
        assert [item["uid"] for item in each["metadata"]["ownerReferences"]] == [uid]
    assert is_controlled_by(child, owner)
    asked.clear()
    assert (await apply_owned(fake, owner, [config_map, new(cls, "child")])).written == 0
    assert asked == []
    assert (await apply_owned(fake, owner, [], kinds=[cls, MAPS])).pruned == 2


@classes
async def test_controller_of_an_instance_is_set_in_place(fake, cls):
    owner, second = await fake.client.create(new(cls)), await fake.client.create(new(cls, "second"))
    child = new(cls, "child")
    assert controller_of(child) is None
    set_controller(owner, child)
    set_controller(owner, child)
    expected = {"apiVersion": "example.com/v1", "kind": "Site", "name": "s", "uid": field(owner, "uid")}
    assert owner_reference(owner) == expected
    assert controller_of(child) == {**expected, "controller": True, "blockOwnerDeletion": True}
    assert is_controlled_by(child, owner)
    with pytest.raises(ObjectTaken, match="Site default/child is controlled by Site s; delete or rename it"):
        set_controller(second, child)
    add_owner(second, child)
    assert [reference["name"] for reference in field(child, "ownerReferences")] == ["s", "second"]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}}
    set_controller(owner, config_map)
    assert is_controlled_by(config_map, owner)


@kind
class Few(pydantic.BaseModel):
    """A class whose metadata have only name and namespace."""

    class Meta(pydantic.BaseModel):
        name: str
        namespace: str

    metadata: Meta
    status: dict[str, Any] = {}


@kind
class Frozen(pydantic.BaseModel, frozen=True):
    class Meta(pydantic.BaseModel, frozen=True):
        name: str
        namespace: str
        ownerReferences: list[dict[str, Any]] = []  # noqa: N815 - as in JSON

    metadata: Meta


async def test_class_without_a_needed_field_is_refused_with_the_remedy(fake):
    owner = await fake.client.create(new(Model))
    few = Few(metadata=Few.Meta(name="s", namespace="default"))
    for use in (
        lambda: set_controller(owner, few),
        lambda: add_owner(owner, few),
        lambda: controller_of(few),
        lambda: is_controlled_by(few, owner),
    ):
        with pytest.raises(ProviderError, match=r"class Few keeps no metadata\.ownerReferences: declare this field"):
            use()
    with pytest.raises(ProviderError, match=r"class Few keeps no metadata\.uid"):
        await update_status(fake.client, few, dict.clear)
    with pytest.raises(ProviderError, match=r"class Few keeps no metadata\.generation"):
        is_condition_true(few.model_copy(update={"status": {"conditions": [READY]}}), "Ready", current=True)
    with pytest.raises(ProviderError, match=r"failed to change metadata of a Frozen: .*rozen.*; give a dict, or"):
        set_controller(owner, Frozen(metadata=Frozen.Meta(name="s", namespace="default")))
    with pytest.raises(ProviderError, match="Site default/s has no uid: read it from the API server"):
        owner_reference(new(Struct))


READY = {"type": "Ready", "status": "True", "reason": "Done", "message": "", "observedGeneration": 1}


def ready(status):
    set_condition(status, "Ready", value=True, reason="Done", observed_generation=1, now=THEN)


@classes
async def test_status_of_an_instance_is_written_once(fake, asked, cls):
    site = await fake.client.create(new(cls))
    # Another program has a field in the status that the class does not keep.
    await put(fake, "status", {"theirs": {"a": 1}}, subresource="status")
    written = await update_status(fake.client, site, ready)
    assert type(written) is cls
    expected = {**READY, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = (await stored(fake))["status"]
    assert (status["theirs"], status["conditions"]) == ({"a": 1}, [expected])
    assert is_condition_true(written, "Ready")
    assert is_condition_true(written, "Ready", current=True) is (field(written, "generation") == 1)
    condition = find_condition(written.status, "Ready")
    if cls is Own:
        assert condition == expected
    else:
        assert condition == Condition(
            type="Ready", status="True", reason="Done", message="", observed_generation=1, last_transition_time=THEN
        )
    assert find_condition(written.status, "Other") is None
    asked.clear()
    assert await update_status(fake.client, written, ready) is written
    assert asked == []
    # The given instance is unchanged.
    assert not is_condition_true(site, "Ready")


@pytest.mark.parametrize(
    ("cls", "replace"),
    [
        (Model, lambda status: status.model_copy(update={"ready": 3})),
        (Struct, lambda status: msgspec.structs.replace(status, ready=3)),
        (Data, lambda status: setattr(status, "ready", 3)),
        (Own, lambda status: status.update(ready=3)),
    ],
)
async def test_status_may_be_replaced_by_another_instance(fake, cls, replace):
    site = await update_status(fake.client, await fake.client.create(new(cls)), ready)
    site = await update_status(fake.client, site, replace)
    assert is_condition_true(site, "Ready")
    assert (await stored(fake))["status"]["ready"] == 3


async def test_status_of_an_instance_keeps_other_conditions_on_conflict(fake):
    site = await fake.client.create(new(Struct))
    theirs = {**READY, "type": "Theirs", "lastTransitionTime": "2026-01-01T00:00:00Z", "hint": "x"}
    await put(fake, "status", {"conditions": [theirs]}, subresource="status")
    fake.fail(Conflict(409, "Conflict", "it has changed"), verb="update", kind=KIND)
    await update_status(fake.client, site, ready)
    first, second = (await stored(fake))["status"]["conditions"]
    assert (first, second["type"]) == (theirs, "Ready")


async def test_status_of_a_missing_instance_is_skipped(fake):
    site = await fake.client.create(new(Model))
    await fake.client.delete(SITES, "s", namespace="default")
    assert await update_status(fake.client, site, ready) is None


def test_condition_that_a_class_cannot_keep_is_refused():
    class Short(pydantic.BaseModel):
        class Condition(pydantic.BaseModel):
            type: str
            status: str
            reason: str
            message: str

        conditions: list[Condition] = []

    class Limited(pydantic.BaseModel):
        class Condition(pydantic.BaseModel):
            type: Literal["Synced"]

        conditions: list[Condition] = []

    class Without(pydantic.BaseModel):
        pass

    class Plain:
        pass

    for status, why in (
        (Short(), r"class Short keeps no conditions\[\]\.observedGeneration: declare this field"),
        (Limited(), "failed to change conditions of a Limited: conditions.0.type: Input should be 'Synced'"),
        (Without(), "class Without keeps no conditions"),
        (Plain(), "Plain is no dict, pydantic model, Struct or dataclass"),
    ):
        with pytest.raises(ProviderError, match=why):
            ready(status)


def test_condition_of_a_class_without_conditions_is_refused():
    @kind
    class Bare(pydantic.BaseModel):
        metadata: dict[str, Any]

    with pytest.raises(ProviderError, match="class Bare keeps no status"):
        is_condition_true(Bare(metadata={}), "Ready")
    assert not is_condition_true(None, "Ready")
    assert find_condition(None, "Ready") is None


@pytest.mark.parametrize("cls", [ModelStatus, StructStatus, DataStatus])
def test_condition_of_a_status_changes_its_time_only_with_its_status(cls):
    status = cls()
    assert set_condition(status, "Ready", value=False, reason="Waits", now=THEN)
    assert not set_condition(status, "Ready", value=False, reason="Waits", now=THEN + dt.timedelta(hours=1))
    assert set_condition(status, "Ready", value=False, reason="Other", now=THEN + dt.timedelta(hours=1))
    assert find_condition(status, "Ready").last_transition_time == THEN
    assert set_condition(status, "Ready", value=True, reason="Other", now=THEN + dt.timedelta(hours=2))
    assert find_condition(status, "Ready").last_transition_time == THEN + dt.timedelta(hours=2)


@pytest.mark.parametrize(
    ("cls", "grow"),
    [
        (Model, lambda site: site.model_copy(update={"spec": ModelSpec(size=2)})),
        (Struct, lambda site: msgspec.structs.replace(site, spec=StructSpec(size=2))),
        (Data, lambda site: setattr(site.spec, "size", 2)),
        (Own, lambda site: setattr(site.spec, "size", 2)),
    ],
)
@pytest.mark.parametrize("is_cached", [True, False])
async def test_create_or_update_of_an_instance_keeps_other_fields(fake, cls, grow, is_cached):
    cache = fake.cache if is_cached else None
    outcome = await create_or_update(fake.client, new(cls), grow, cache=cache)
    assert (outcome.result, type(outcome.object), outcome.object.spec.size) == ("created", cls, 2)
    await put(fake, "spec", {"theirs": {"a": 1}, "size": 7})
    await put(fake, "metadata", {"labels": {"theirs": "1"}})
    outcome = await create_or_update(fake.client, new(cls), grow, cache=cache)
    assert (outcome.result, outcome.object.spec.size) == ("updated", 2)
    found = await stored(fake)
    assert found["spec"] == {"size": 2, "theirs": {"a": 1}}
    assert found["metadata"]["labels"] == {"theirs": "1"}
    outcome = await create_or_update(fake.client, new(cls), grow, cache=cache)
    assert (outcome.result, type(outcome.object)) == ("unchanged", cls)


async def test_create_or_update_removes_a_field_that_becomes_none(fake):
    def paint(colour):
        return lambda site: setattr(site.spec, "colour", colour)

    await create_or_update(fake.client, new(Data), paint("red"))
    assert (await stored(fake))["spec"]["colour"] == "red"
    await create_or_update(fake.client, new(Data), paint(None))
    assert "colour" not in (await stored(fake))["spec"]


async def test_create_or_update_refuses_another_name_of_an_instance(fake):
    def rename(site):
        site.metadata.name = "other"

    with pytest.raises(ProviderError, match="kind and names must stay"):
        await create_or_update(fake.client, new(Data), rename)


@classes
async def test_wait_for_a_class_returns_instances(fake, cls):
    await fake.client.create(new(cls))
    key = {"namespace": "default", "timeout_seconds": 9}
    found = await wait_for(fake.client, cls, "s", lambda site: site is not None and site.spec.size == 1, **key)
    assert type(found) is cls
    assert await wait_for(fake.client, cls, "none", lambda site: site is None, **key) is None
    await put(fake, "spec", {"size": "large"})
    with pytest.raises(DecodeFailed, match=r"Site default/s of .* as .*size"):
        await wait_for(fake.client, cls, "s", bool, **key)
    assert await or_none(fake.client.get(SITES, "s", namespace="default")) is not None
