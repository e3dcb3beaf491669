"""The way from pydantic to structural schemas: what is translated, and that anything else is refused."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, Field

from kplane.api.extensions import Extension, Rule, rules
from kplane.api.structural import SchemaError, structural_schema, to_structural


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


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
            Annotated[int | str, Extension({"x-kubernetes-int-or-string": True})],
            {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        ),
    ],
)  # fmt: skip
def test_translated(annotation: Any, schema: dict[str, Any]) -> None:
    assert spec_of(annotation) == schema


def test_a_model_is_put_where_it_is_used_with_its_docstring_on_one_line() -> None:
    assert spec_of(Leaf) == {
        "type": "object",
        "description": "What grows on a tree.",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"], "default": "red"}},
    }


def test_what_a_field_says_wins_over_its_model() -> None:
    assert spec_of(Leaf, description="Mine.", default=Leaf())["description"] == "Mine."


class Closed(BaseModel, extra="forbid"):
    name: str


def test_a_model_that_forbids_other_fields_leaves_that_to_the_api_server() -> None:
    assert spec_of(Closed) == {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_a_default_of_none_is_no_default() -> None:
    assert spec_of(str | None, default=None) == {"type": "string"}


def test_rules_of_several_annotations_add_up() -> None:
    first, second = Rule("self != 'a'", "not a"), Rule("self != 'b'", "not b", field_path=".x")
    schema = spec_of(Annotated[str, Extension(rules(first)), Extension(rules(second))])
    assert schema["x-kubernetes-validations"] == [first.as_schema(), second.as_schema()]
    assert second.as_schema()["fieldPath"] == ".x"


def test_a_property_may_be_called_like_a_keyword() -> None:
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


@pytest.mark.parametrize(
    ("annotation", "because"),
    [
        (int | str, "anyOf"),
        (Bird | Fish, "anyOf"),
        (Annotated[Bird | Fish, Field(discriminator="kind")], "oneOf"),
        (timedelta, "duration"),
        (tuple[int, str], "prefixItems"),
        (Any, "type"),
        (None, "null"),
        (Tree, "contains itself"),
        (Open, "additionalProperties"),
        (dict[Annotated[str, Field(pattern="^x")], int], "patternProperties"),
        (dict[Colour, int], "propertyNames"),
    ],
)
def test_refused_with_the_place(annotation: Any, because: str) -> None:
    with pytest.raises(SchemaError, match=rf"^\.spec.*{because}"):
        spec_of(annotation)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"type": "string", "not": {"enum": ["a"]}},
        {"type": ["string", "null"]},
        {"type": "string", "format": "hostname"},
        {"type": "string", "contentEncoding": "base64"},
        {"type": "object", "x-kubernetes-unheard-of": True},
        {"allOf": [{"type": "object"}, {"required": ["a"]}]},
        {"type": "integer", "minimum": 1, "exclusiveMinimum": 0},
        {"enum": ["a"]},
    ],
    ids=lambda schema: "-".join(schema),
)
def test_a_keyword_that_would_be_lost_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        to_structural({"type": "object", "properties": {"field": schema}})
