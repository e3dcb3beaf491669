"""Annotations of models for keywords that JSON schema lacks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from kplane.api.extensions import Extension, Rule, rules
from kplane.provider.crds import structural_schema

FIRST, SECOND = Rule("self != 'a'", "not a"), Rule("self != 'b'", "not b", field_path=".x")


class Kind(BaseModel):
    metadata: dict[str, Any]
    name: Annotated[str, Extension(rules(FIRST)), Extension(rules(SECOND))]
    port: Annotated[int | str, Extension({"x-kubernetes-int-or-string": True})]


def test_rules_of_several_annotations_are_combined() -> None:
    schema = structural_schema(Kind)["properties"]["name"]
    assert schema["x-kubernetes-validations"] == [FIRST.as_schema(), SECOND.as_schema()]
    assert SECOND.as_schema()["fieldPath"] == ".x"


def test_keywords_of_an_annotation_are_in_the_schema() -> None:
    schema = structural_schema(Kind)["properties"]["port"]
    assert schema == {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
