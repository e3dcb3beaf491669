"""Kinds as classes: client, watches, caches, indexes, events and controllers accept and return instances."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

from kplane.provider import (
    Cluster,
    Manager,
    NotServed,
    ObjectKey,
    ProviderError,
    Request,
    Resource,
    controller,
    enqueue_mapped,
    typed_kind,
)
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.provider.errors import DecodeFailed
from kplane.provider.providers.single import SingleProvider
from kplane.provider.testing import FakeCluster, eventually

KIND = "example.com/v1/Widget"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)


class Spec(pydantic.BaseModel, frozen=True, alias_generator=to_camel, populate_by_name=True):
    shown_size: int
    owner: str | None = None


@typed_kind(KIND, plural="widgets", namespaced=True)
class Widget(pydantic.BaseModel, frozen=True):
    metadata: dict[str, Any]
    spec: Spec


class StructSpec(msgspec.Struct, rename="camel"):
    shown_size: int
    owner: str | None = None


@typed_kind(KIND, plural="widgets", namespaced=True)
class WidgetStruct(msgspec.Struct):
    metadata: dict[str, Any]
    spec: StructSpec


@dataclass
class DataSpec:
    shownSize: int  # noqa: N815 - as in JSON
    owner: str | None = None


@typed_kind(KIND, plural="widgets", namespaced=True)
@dataclass
class WidgetData:
    spec: DataSpec
    metadata: dict[str, Any] = dataclass_field(default_factory=dict)


class Own:
    """A class with its own methods from_dict and to_dict."""

    def __init__(self, metadata: dict[str, Any], size: int) -> None:
        self.metadata = metadata
        self.size = size

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Own:
        return cls(found["metadata"], found["spec"]["shownSize"])

    def to_dict(self) -> dict[str, Any]:
        return {"metadata": self.metadata, "spec": {"shownSize": self.size, "owner": None}}


typed_kind(KIND, plural="widgets", namespaced=True, decode=Own.from_dict, encode=Own.to_dict)(Own)


INSTANCES = {
    Widget: lambda name: Widget(metadata={"name": name, "namespace": "x"}, spec=Spec(shown_size=3)),
    WidgetStruct: lambda name: WidgetStruct({"name": name, "namespace": "x"}, StructSpec(3)),
    WidgetData: lambda name: WidgetData(DataSpec(3), {"name": name, "namespace": "x"}),
    Own: lambda name: Own({"name": name, "namespace": "x"}, 3),
}


def body(name: str, size: Any, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "x"}, "spec": {"shownSize": size, **spec}}


@pytest.fixture
async def cluster():
    found = FakeCluster("a", kinds=[Widget])
    await found.client.create(NAMESPACES, {"metadata": {"name": "x"}})
    yield found
    await found.aclose()


@pytest.mark.parametrize("cls", INSTANCES, ids=lambda cls: cls.__name__)
async def test_typed_client_writes_and_reads_instances(cluster: FakeCluster, cls: type[Any]) -> None:
    client = cluster.client
    created = await client.create(INSTANCES[cls]("a"))
    assert type(created) is cls
    assert created.metadata["uid"]
    stored = await client.get(WIDGETS, "a", namespace="x")
    # A field that is None is left out.
    assert stored["spec"] == {"shownSize": 3}
    assert (stored["apiVersion"], stored["kind"]) == ("example.com/v1", "Widget")
    for found in (
        await client.get(cls, "a", namespace="x"),
        (await client.list(cls)).items[0],
        await client.replace(created),
        await client.replace(cls, created),
        await client.apply(INSTANCES[cls]("b"), field_manager="m"),
        await client.create(cls, body("c", 3)),
        await client.patch(cls, "a", {"metadata": {"labels": {"l": "1"}}}, namespace="x"),
        await client.json_patch(cls, ObjectKey("x", "a"), []),
        await cluster.cache.get(cls, ObjectKey("x", "a")),
        (await cluster.cache.list(cls))[0],
    ):
        assert type(found) is cls
    await client.delete(cls, "a", namespace="x")
    assert not await client.exists(cls, "a", namespace="x")


async def test_typed_watch_yields_instances_and_skips_a_bad_object(cluster: FakeCluster) -> None:
    await cluster.client.create(WIDGETS, body("a", "large"))
    await cluster.client.create(WIDGETS, body("b", 4))
    async with cluster.client.watch(Widget) as watch:
        bad, good = [await anext(watch) for _ in range(2)]
        with pytest.raises(DecodeFailed, match=r"failed to decode Widget x/a of https.* as Widget: spec\.shownSize: "):
            _ = bad.object
        assert bad.raw["spec"] == {"shownSize": "large"}
        assert good.object.spec.shown_size == 4


@pytest.mark.parametrize(
    ("cls", "cause"),
    [
        (Widget, "spec.shownSize: Input should be a valid integer, unable to parse string as an integer"),
        (WidgetStruct, "spec.shownSize: Expected `int`, got `str`"),
    ],
)
async def test_decode_error_names_object_field_and_remedy_without_the_value(
    cluster: FakeCluster, cls: type[Any], cause: str
) -> None:
    await cluster.client.create(WIDGETS, body("a", "s3cret"))
    remedy = f"; correct the object, or have class {cls.__name__} accept it"
    for read in (cluster.client.get, cluster.cache.get):
        with pytest.raises(DecodeFailed) as caught:
            await read(cls, "a", namespace="x")
        said = str(caught.value)
        assert said.startswith("failed to decode Widget x/a of ")
        assert said.endswith(f" as {cls.__name__}: {cause}{remedy}")
    for listed in (cluster.client.list, cluster.cache.list):
        with pytest.raises(DecodeFailed, match="x/a"):
            await listed(cls)


async def test_decode_error_names_a_few_of_many_causes(cluster: FakeCluster) -> None:
    @typed_kind("v1/ConfigMap")
    class Strict(pydantic.BaseModel):
        data: dict[str, int]

    data = {str(number): "x" for number in range(5)}
    await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "x"}, "data": data})
    with pytest.raises(DecodeFailed, match=r"data\.0: .*; data\.1: .*; data\.2: .*; and 2 more; correct"):
        await cluster.client.get(Strict, "a", namespace="x")


async def test_object_version_is_decoded_once_for_all_readers(cluster: FakeCluster) -> None:
    seen: list[str] = []

    @typed_kind(KIND, plural="widgets", namespaced=True, decode=lambda found: Counted(found), encode=lambda _: {})
    class Counted:
        def __init__(self, found: dict[str, Any]) -> None:
            seen.append(found["metadata"]["resourceVersion"])
            if found["spec"]["shownSize"] == "bad":
                raise ValueError("bad")

    key = ObjectKey("x", "a")
    await cluster.client.create(WIDGETS, body("a", 1))
    first = await cluster.cache.get(Counted, key)
    assert await cluster.cache.get(Counted, key) is first
    assert await cluster.cache.list(Counted) == [first]
    assert len(seen) == 1
    await cluster.client.patch(WIDGETS, key, {"spec": {"shownSize": "bad"}})
    informer = cluster.cache.informer(Counted)
    await eventually(lambda: informer.list()[0]["spec"]["shownSize"] == "bad")
    for _ in range(3):
        with pytest.raises(DecodeFailed, match="as Counted: bad"):
            await cluster.cache.get(Counted, key)
    assert len(seen) == 2
    # Readers of dicts still get copies.
    assert (await cluster.cache.get(WIDGETS, key))["spec"] == {"shownSize": "bad"}


async def test_index_of_a_class_gets_instances_and_leaves_out_bad_objects(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.client.create(WIDGETS, body("a", 1, owner="me"))
    await cluster.client.create(WIDGETS, body("b", "large", owner="me"))

    def owner(widget: Widget) -> list[str]:
        return [widget.spec.owner or ""]

    for _ in range(2):
        cluster.cache.index_field(Widget, "owner", owner)
    with caplog.at_level(logging.WARNING):
        (found,) = await cluster.cache.list(Widget, field={"owner": "me"})
    assert found.metadata["name"] == "a"
    assert "failed to index Widget x/b by 'owner': failed to decode Widget x/b" in caplog.text
    assert "Traceback" not in caplog.text


async def test_controller_of_a_class_continues_after_a_bad_object(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.client.create(WIDGETS, body("bad", "large"))
    await cluster.client.create(WIDGETS, body("good", 7))
    manager = Manager(None, SingleProvider(cluster), name="test")
    sizes: dict[str, int] = {}
    mapped: list[int] = []

    def to_itself(_: Cluster, widget: Widget) -> list[ObjectKey]:
        mapped.append(widget.spec.shown_size)
        return []

    async def reconcile(request: Request, cluster: Cluster) -> None:
        widget = await cluster.cache.get(Widget, request)
        sizes[request.name] = widget.spec.shown_size

    controller(manager).for_(Widget).watches(Widget, enqueue_mapped(to_itself)).build(reconcile)
    with caplog.at_level(logging.WARNING):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(manager.run(asyncio.Event()))
            await eventually(lambda: (sizes, mapped) == ({"good": 7}, [7]) and "failed to reconcile" in caplog.text)
            # The repaired object passes, although its former version cannot be decoded.
            await cluster.client.patch(WIDGETS, ObjectKey("x", "bad"), {"spec": {"shownSize": 8}})
            await eventually(lambda: (sizes, mapped) == ({"good": 7, "bad": 8}, [7, 8]))
            running.cancel()
    assert "failed to map an event of cluster a: failed to decode Widget x/bad" in caplog.text


async def test_kind_of_a_class_is_discovered(cluster: FakeCluster) -> None:
    @typed_kind(KIND)
    class Asked(msgspec.Struct):
        spec: StructSpec

    @typed_kind("example.com/v1/Gadget")
    class Gone(msgspec.Struct):
        spec: StructSpec

    await cluster.client.create(WIDGETS, body("a", 1))
    assert cluster.client.known_resource(Asked) is None
    assert (await cluster.client.get(Asked, "a", namespace="x")).spec.shown_size == 1
    with pytest.raises(NotServed, match=r"serves no example\.com/v1/Gadget"):
        await cluster.client.get(Gone, "a", namespace="x")


async def test_class_without_a_kind_is_refused(cluster: FakeCluster) -> None:
    class Derived(Widget):
        pass

    class Plain:
        pass

    for cls in (Derived, Plain):
        with pytest.raises(
            ProviderError, match=f"class {cls.__name__} stands for no kind: decorate it with typed_kind"
        ):
            await cluster.client.get(cls, "a", namespace="x")
    with pytest.raises(ProviderError, match="a Plain cannot be written as Widget"):
        await cluster.client.create(Widget, Plain())  # type: ignore[arg-type]
    with pytest.raises(ProviderError, match="there is no object to write"):
        await cluster.client.create(Widget)
    with pytest.raises(ProviderError, match="Plain is no pydantic model, Struct or dataclass"):
        typed_kind(KIND)(Plain)
    with pytest.raises(ProviderError, match="is not the name of a kind"):
        typed_kind("Widget")
    with pytest.raises(ProviderError, match="plural and namespaced together"):
        typed_kind(KIND, plural="widgets")
    with pytest.raises(ProviderError, match="the metadata alone is no Widget"):
        await cluster.cache.get(Widget, "a", namespace="x", metadata_only=True)
