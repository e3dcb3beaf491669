"""Webhooks for a kind as a class: they receive instances, and return changes of some fields."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pydantic
import pytest

from kplane.provider import typed_kind
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.typed import typed_of
from kplane.provider.testing import FakeCluster
from kplane.provider.webhooks import Admission, Denied
from kplane.provider.webhooks.admission import read_review
from kplane.provider.webhooks.server import _admit, _Webhook

KIND = {"group": "example.com", "version": "v1", "kind": "Widget"}


class Spec(pydantic.BaseModel):
    size: int = 1
    owner: str | None = None
    tags: dict[str, str] = {}


@typed_kind("example.com/v1/Widget")
class Widget(pydantic.BaseModel):
    metadata: dict[str, Any]
    spec: Spec


class StructSpec(msgspec.Struct):
    size: int = 1
    owner: str | None = None
    tags: dict[str, str] = {}


@typed_kind("example.com/v1/Widget")
class WidgetStruct(msgspec.Struct):
    metadata: dict[str, Any]
    spec: StructSpec


def body(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "x", "annotations": {"k": "1"}}, "spec": spec}


@pytest.fixture
async def ask():
    cluster = FakeCluster("a")

    async def asked(function: Any, *, cls: type[Any] = Widget, mutates: bool = True, **fields: Any) -> dict[str, Any]:
        request = {"uid": "u", "operation": "UPDATE", "kind": KIND, "namespace": "x", "name": "a", **fields}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        kind, typed = parse_kind(cls), typed_of(cls)
        read = read_review(json.dumps(review).encode(), kind=kind, cluster=cluster, typed=typed)
        answer = await _admit(read, _Webhook(kind, typed, function, mutates=mutates), seconds=5.0)
        found: dict[str, Any] = json.loads(answer.body)["response"]
        return found

    yield asked
    await cluster.aclose()


def patch(answer: dict[str, Any]) -> list[dict[str, Any]]:
    assert answer["allowed"], answer
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(answer.get("patch", b"W10=")))
    return sorted(operations, key=lambda each: each["path"])


@pytest.mark.parametrize("cls", [Widget, WidgetStruct])
async def test_mutation_patch_has_only_changed_fields(ask: Any, cls: type[Any]) -> None:
    async def mutate(admission: Admission[Any]) -> None:
        assert type(admission.object) is cls
        assert admission.old_object.spec.size == 2
        admission.object.spec.size = 3
        admission.object.spec.owner = None
        admission.object.spec.tags = {"t": "1"}
        admission.object.metadata["annotations"]["k"] = "2"

    sent = body(owner="me", unknown={"deep": [1]})
    answer = await ask(mutate, cls=cls, object=sent, oldObject=body(size=2))
    # The class neither keeps `unknown`, nor adds its defaults.
    assert patch(answer) == [
        {"op": "replace", "path": "/metadata/annotations/k", "value": "2"},
        {"op": "remove", "path": "/spec/owner"},
        {"op": "add", "path": "/spec/size", "value": 3},
        {"op": "add", "path": "/spec/tags", "value": {"t": "1"}},
    ]


async def test_mutation_accepts_another_instance(ask: Any) -> None:
    async def mutate(admission: Admission[Widget]) -> None:
        spec = admission.object.spec.model_copy(update={"size": 4})
        admission.object = admission.object.model_copy(update={"spec": spec})

    answer = await ask(mutate, object=body(size=1))
    assert patch(answer) == [{"op": "replace", "path": "/spec/size", "value": 4}]


async def test_mutation_without_a_change_has_no_patch(ask: Any) -> None:
    async def mutate(admission: Admission[Widget]) -> None:
        assert admission.object.spec.size == 1

    assert patch(await ask(mutate, object=body())) == []


async def test_object_that_cannot_be_decoded_is_refused_with_its_field(ask: Any) -> None:
    async def check(_: Admission[Widget]) -> None:
        raise AssertionError

    answer = await ask(check, mutates=False, object=body(size="large"))
    assert (answer["allowed"], answer["status"]["code"]) == (False, 422)
    assert "failed to decode Widget x/a of " in answer["status"]["message"]
    assert "as Widget: spec.size: " in answer["status"]["message"]
    assert "large" not in answer["status"]["message"]


async def test_bad_old_object_does_not_block_its_repair(ask: Any) -> None:
    reads: list[bool] = []

    async def check(admission: Admission[Widget]) -> None:
        if reads:
            _ = admission.old_object
        if admission.object is None:
            raise Denied("kept")

    bad = body(size="large")
    assert (await ask(check, mutates=False, object=body(size=1), oldObject=bad))["allowed"]
    reads.append(True)
    assert (await ask(check, mutates=False, object=body(size=1), oldObject=bad))["status"]["code"] == 422


async def test_missing_old_and_new_objects_are_none(ask: Any) -> None:
    seen: list[Any] = []

    async def check(admission: Admission[Any]) -> None:
        seen.append((admission.object, admission.old_object))

    await ask(check, mutates=False, operation="CREATE", object=body())
    await ask(check, operation="DELETE", object=None, oldObject=body())
    assert [(type(new).__name__, type(old).__name__) for new, old in seen] == [
        ("Widget", "NoneType"),
        ("NoneType", "Widget"),
    ]
