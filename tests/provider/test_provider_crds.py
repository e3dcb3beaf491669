"""CRD manifests from classes: types with a structural schema, and types that are refused."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as data_field
from datetime import date, datetime, timedelta
from enum import IntEnum, StrEnum
from ipaddress import IPv4Address
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
import yaml
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from kplane.provider import ProviderError, typed_kind
from kplane.provider.crds import (
    ATOMIC_LIST,
    EMBEDDED_RESOURCE,
    INT_OR_STRING,
    NULLABLE,
    PRESERVE_UNKNOWN_FIELDS,
    SET,
    Column,
    Scale,
    SchemaError,
    crd_manifest,
    list_map,
    rule,
    rules,
    structural_schema,
    to_structural,
    to_yaml,
)
from kplane.provider.objects import Conditions


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Number(IntEnum):
    ONE = 1
    TWO = 2


class Leaf(BaseModel):
    """What grows
    on a tree.
    """

    colour: Colour = Colour.RED


class Kind(BaseModel):
    metadata: dict[str, Any]


def spec_of(annotation: Any, **field: Any) -> dict[str, Any]:
    model = type("Example", (Kind,), {"__annotations__": {"spec": annotation}, "spec": Field(**field)})
    schema: dict[str, Any] = structural_schema(model)["properties"]["spec"]
    return schema


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (int, {"type": "integer", "format": "int64"}),
        (float, {"type": "number"}),
        (AwareDatetime, {"type": "string", "format": "date-time"}),
        (str | None, {"type": "string"}),
        (Literal["one"], {"type": "string", "enum": ["one"]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Number, {"type": "integer", "enum": [1, 2]}),
        (UUID, {"type": "string", "format": "uuid"}),
        (date, {"type": "string", "format": "date"}),
        (IPv4Address, {"type": "string", "format": "ipv4"}),
        (int | None, {"type": "integer", "format": "int64"}),
        (int | str | None, {**INT_OR_STRING, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (
            Annotated[list[str] | None, Field(max_length=3, json_schema_extra=SET)],
            {"type": "array", "items": {"type": "string"}, "maxItems": 3, "x-kubernetes-list-type": "set"},
        ),
        (Annotated[str | None, Field(json_schema_extra=NULLABLE)], {"type": "string", "nullable": True}),
        (
            Annotated[dict[str, Any], Field(json_schema_extra=EMBEDDED_RESOURCE)],
            {"type": "object", "x-kubernetes-embedded-resource": True, **PRESERVE_UNKNOWN_FIELDS},
        ),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}}),
        (dict[str, Any], {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (
            Annotated[float, Field(gt=0, lt=2.5)],
            {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 2.5, "exclusiveMaximum": True},
        ),
        (Annotated[str, Field(min_length=1, max_length=9, pattern="^x")],
         {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^x"}),
        (
            Annotated[int | str, Field(json_schema_extra=INT_OR_STRING)],
            {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        ),
        (int | str, {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
    ],
)  # fmt: skip
def test_schema_translates_python_type(annotation: Any, schema: dict[str, Any]) -> None:
    assert spec_of(annotation) == schema


def test_schema_inlines_model_with_docstring_on_one_line() -> None:
    assert spec_of(Leaf) == {
        "type": "object",
        "description": "What grows on a tree.",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"], "default": "red"}},
    }


def test_schema_of_field_overrides_its_model() -> None:
    assert spec_of(Leaf, description="Mine.", default=Leaf())["description"] == "Mine."


class Closed(BaseModel, extra="forbid"):
    name: str


def test_schema_of_model_that_forbids_extra_fields_has_no_marker() -> None:
    assert spec_of(Closed) == {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_schema_omits_default_of_none() -> None:
    assert spec_of(str | None, default=None) == {"type": "string"}


class Optional(BaseModel):
    size: int = 3
    owner: str | None = None


def test_schema_default_of_model_has_no_null() -> None:
    schema = spec_of(Optional, default=Optional())
    assert schema["default"] == {"size": 3}
    assert schema["properties"]["size"] == {"type": "integer", "format": "int64", "default": 3}


def test_schema_accepts_property_named_like_a_keyword() -> None:
    schema = to_structural({"type": "object", "properties": {"title": {"type": "string", "title": "Title"}}})
    assert schema == {"type": "object", "properties": {"title": {"type": "string"}}}


class Bird(BaseModel):
    kind: Literal["bird"]


class Fish(BaseModel):
    kind: Literal["fish"]


class Tree(BaseModel):
    children: list[Tree]


class Open(BaseModel, extra="allow"):
    name: str


class Kept(BaseModel):
    model_config = ConfigDict(extra="allow", json_schema_extra=PRESERVE_UNKNOWN_FIELDS)
    name: str


def test_schema_of_model_with_extra_fields_preserves_unknown_fields() -> None:
    expected = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    assert spec_of(Kept) == {**expected, **PRESERVE_UNKNOWN_FIELDS}


@pytest.mark.parametrize(
    ("annotation", "because"),
    [
        (Annotated[int, Field(ge=1)] | str, "anyOf"),
        (bytes, "format 'binary'"),
        (Bird | Fish, "anyOf"),
        (Annotated[Bird | Fish, Field(discriminator="kind")], "oneOf"),
        (timedelta, "duration"),
        (tuple[int, str], "prefixItems"),
        (Any, "type"),
        (None, "null"),
        (Tree, "contains itself"),
        (Open, "additionalProperties .* json_schema_extra=PRESERVE_UNKNOWN_FIELDS"),
        (Annotated[list[dict[str, Any]], Field(json_schema_extra=list_map("type"))], "items with a field 'type'"),
        (Annotated[list[Optional], Field(json_schema_extra=list_map("owner"))], "required or has a default"),
        (dict[Annotated[str, Field(pattern="^x")], int], "patternProperties"),
        (dict[Colour, int], "propertyNames"),
    ],
)
def test_schema_error_names_the_field(annotation: Any, because: str) -> None:
    with pytest.raises(SchemaError, match=rf"^\.spec.*{because}"):
        spec_of(annotation)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False, "items": {"type": "string"}},
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"type": "string", "not": {"enum": ["a"]}},
        {"type": ["string", "null"]},
        {"type": "string", "format": "idn-hostname"},
        {"type": "string", "contentEncoding": "base64"},
        {"type": "object", "x-kubernetes-unheard-of": True},
        {"allOf": [{"type": "object"}, {"required": ["a"]}]},
        {"type": "integer", "minimum": 1, "exclusiveMinimum": 0},
        {"enum": ["a", 1]},
        {"enum": [None]},
    ],
    ids=lambda schema: "-".join(schema),
)
def test_schema_refuses_keyword_that_would_be_dropped(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        to_structural({"type": "object", "properties": {"field": schema}})


class Item(BaseModel):
    name: str


class Spec(BaseModel):
    """What is asked for."""

    size: Annotated[int, Field(ge=1)] = 1
    items: Annotated[list[Item], Field(json_schema_extra=list_map("name"))] = Field(default_factory=list)
    args: Annotated[list[str], Field(json_schema_extra=ATOMIC_LIST)] = Field(default_factory=list)


class Status(BaseModel):
    ready: int = 0


@typed_kind("example.com/v1/Widget", plural="widgets", namespaced=True)
class Widget(BaseModel):
    """A widget."""

    model_config = ConfigDict(json_schema_extra=rules(rule("self.spec.size < 10", "too large", field_path=".spec")))
    metadata: dict[str, Any]
    spec: Spec
    status: Status | None = None


SIZE = {"type": "integer", "format": "int64", "minimum": 1, "default": 1}


def test_manifest_has_names_schema_subresources_and_columns() -> None:
    manifest = crd_manifest(
        Widget,
        columns=[Column("Size", "integer", ".spec.size"), Column("Age", "date", ".metadata.creationTimestamp", 1)],
        short_names=["wd"],
        selectable=[".spec.size"],
        scale=Scale(replicas=".spec.size", status_replicas=".status.ready"),
    )
    assert manifest["metadata"] == {"name": "widgets.example.com"}
    assert manifest["spec"]["scope"] == "Namespaced"
    assert manifest["spec"]["names"] == {
        "kind": "Widget",
        "listKind": "WidgetList",
        "plural": "widgets",
        "singular": "widget",
        "shortNames": ["wd"],
    }
    (version,) = manifest["spec"]["versions"]
    schema = version.pop("schema")["openAPIV3Schema"]
    assert version == {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.ready"},
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1},
        ],
        "selectableFields": [{"jsonPath": ".spec.size"}],
    }
    assert list(schema["properties"]) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert schema["required"] == ["spec"]
    assert schema["x-kubernetes-validations"][0]["fieldPath"] == ".spec"
    spec = schema["properties"]["spec"]
    assert spec["properties"]["size"] == SIZE
    assert spec["properties"]["items"]["x-kubernetes-list-map-keys"] == ["name"]
    assert spec["properties"]["args"]["x-kubernetes-list-type"] == "atomic"
    assert yaml.safe_load(to_yaml(manifest)) == manifest


class StructSpec(msgspec.Struct, rename="camel"):
    shown_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    port: int | str = 80
    colour: Colour = Colour.RED
    number: Literal[1, 2] = 1
    tags: Annotated[list[str], msgspec.Meta(extra_json_schema=SET)] = msgspec.field(default_factory=list)


@typed_kind("example.com/v1/Gadget", plural="gadgets", namespaced=False)
class Gadget(msgspec.Struct):
    """A gadget."""

    metadata: dict[str, Any]
    spec: StructSpec


@typed_kind("example.com/v1/Tool", plural="tools", namespaced=False)
@dataclass
class Tool:
    spec: StructSpec
    metadata: dict[str, Any]


@pytest.mark.parametrize("cls", [Gadget, Tool])
def test_manifest_of_struct_or_dataclass_equals_manifest_of_model(cls: type[Any]) -> None:
    manifest = crd_manifest(cls)
    (version,) = manifest["spec"]["versions"]
    assert manifest["spec"]["scope"] == "Cluster"
    assert "subresources" not in version
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["required"] == ["spec"]
    fields = schema["properties"]["spec"]["properties"]
    assert fields["shownSize"] == SIZE
    assert fields["since"] == {"type": "string", "format": "date-time"}
    assert fields["colour"] == {"type": "string", "enum": ["blue", "red"], "default": "red"}
    assert fields["number"] == {"type": "integer", "enum": [1, 2], "default": 1}
    assert fields["port"][next(iter(INT_OR_STRING))] is True
    assert fields["tags"]["x-kubernetes-list-type"] == "set"


class ModelWithConditions(BaseModel):
    conditions: Conditions = []


class StructWithConditions(msgspec.Struct):
    conditions: Conditions = []


@dataclass
class DataWithConditions:
    conditions: Conditions = data_field(default_factory=list)


@pytest.mark.parametrize("cls", [ModelWithConditions, StructWithConditions, DataWithConditions])
def test_schema_of_conditions_is_that_of_kubernetes(cls: type[Any]) -> None:
    conditions = structural_schema(cls)["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    condition = conditions["items"]
    assert condition["required"] == ["type", "status", "reason", "message", "lastTransitionTime"]
    fields = condition["properties"]
    assert all(fields[name].pop("description") for name in fields)
    assert fields["status"] == {"type": "string", "enum": ["False", "True", "Unknown"]}
    assert fields["lastTransitionTime"] == {"type": "string", "format": "date-time"}
    assert fields["observedGeneration"] == {"type": "integer", "format": "int64", "minimum": 0}
    assert fields["message"] == {"type": "string", "maxLength": 32768}
    assert all(fields[name].pop("pattern") for name in ("reason", "type"))
    assert fields["reason"] == {"type": "string", "minLength": 1, "maxLength": 1024}
    assert fields["type"] == {"type": "string", "maxLength": 316}


def test_manifest_of_class_without_plural_or_builtin_kind_is_refused() -> None:
    @typed_kind("example.com/v1/Asked")
    class Asked(msgspec.Struct):
        spec: StructSpec

    @typed_kind("v1/ConfigMap")
    class Config(msgspec.Struct):
        data: dict[str, str]

    for cls in (Asked, Config):
        with pytest.raises(ProviderError, match=f"{cls.__name__} needs a group, a plural and a scope"):
            crd_manifest(cls)


def test_kind_without_a_schema_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(SchemaError, match="failed to make a JSON schema of Plain"):
        structural_schema(Plain)
