"""From pydantic's JSON schema to the structural schema of a CustomResourceDefinition.

Keywords are taken from a list, and anything else raises: what is dropped silently is validation that is lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import override

__all__ = ["SchemaError", "structural_schema", "to_structural"]

_DROPPED: Final = frozenset({"title", "discriminator", "examples", "deprecated", "$defs"})
_COPIED: Final = frozenset(
    {
        "type",
        "format",
        "enum",
        "default",
        "required",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "nullable",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean")
_FORMATS: Final = frozenset({"int32", "int64", "float", "double", "byte", "date-time"})
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_ROOT_TEXTS: Final = {
    "apiVersion": "APIVersion is the group and the version of the schema of this object.",
    "kind": "Kind is the type of this object.",
}


class SchemaError(Exception):
    """A model says something that a structural schema cannot; the message names the place in the model."""


class _Generator(GenerateJsonSchema):
    """pydantic's generator, where the absence of a field is the only null."""

    @override
    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        generated = super().default_schema(schema)
        if generated.get("default", ...) is None:
            del generated["default"]
        return generated

    @override
    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"format": "int64", **super().int_schema(schema)}

    @override
    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        generated = super().set_schema(schema)
        generated.pop("uniqueItems", None)
        return {**generated, "x-kubernetes-list-type": "set"}


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the `openAPIV3Schema` of a kind; SchemaError where the model says more than such a schema can."""
    schema = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    structural = to_structural(schema)
    fields = {name: {"type": "string", "description": text} for name, text in _ROOT_TEXTS.items()}
    structural["properties"] = {**fields, **structural["properties"], "metadata": {"type": "object"}}
    structural["required"] = [name for name in structural.get("required", []) if name != "metadata"]
    return structural


def to_structural(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a JSON schema with its `$defs`; SchemaError where that is not possible."""
    return _Translation(schema.get("$defs", {})).translate(schema, at="", within=())


class _Translation:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def translate(self, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]) -> dict[str, Any]:
        """Translate one schema; `at` is its path in the kind, `within` the definitions that it lies in."""
        schema, within = self._inline(schema, at=at, within=within)
        structural: dict[str, Any] = {}
        for keyword, value in schema.items():
            match keyword:
                case "properties":
                    structural[keyword] = {
                        name: self.translate(item, at=f"{at}.{name}", within=within) for name, item in value.items()
                    }
                case "items":
                    structural[keyword] = self.translate(value, at=f"{at}[]", within=within)
                case "additionalProperties":
                    structural.update(self._additional(value, schema, at=at, within=within))
                case "anyOf" if schema.get(_INT_OR_STRING):
                    structural[keyword] = [{"type": "integer"}, {"type": "string"}]
                case _:
                    structural.update(_keyword(keyword, value, schema, at=at))
        if "type" not in structural and not structural.keys() & {
            _INT_OR_STRING,
            "x-kubernetes-preserve-unknown-fields",
        }:
            raise SchemaError(f"{at or 'the kind'}: a structural schema needs a type, and {dict(schema)} has none")
        return structural

    def _inline(
        self, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Put a definition where it is referred to; what stands beside the reference wins."""
        while "$ref" in schema or "allOf" in schema:
            siblings = {keyword: value for keyword, value in schema.items() if keyword not in {"$ref", "allOf"}}
            if "allOf" in schema:
                if len(schema["allOf"]) != 1 or "$ref" in schema:
                    raise SchemaError(f"{at}: allOf of several schemas cannot be merged; write one model")
                inner = schema["allOf"][0]
            else:
                name = schema["$ref"].removeprefix("#/$defs/")
                if name in within:
                    raise SchemaError(f"{at}: {name} contains itself; a structural schema cannot be recursive")
                within = (*within, name)
                inner = self._definitions[name]
            schema = {**inner, **siblings}
        return schema, within

    def _additional(self, value: Any, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]) -> dict[str, Any]:
        if value is False:
            return {}  # the API server prunes or refuses unknown fields by itself
        if "properties" in schema:
            raise SchemaError(f"{at}: additionalProperties beside properties; use a dict or a model, not both")
        if value is True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        return {"additionalProperties": self.translate(value, at=f"{at}{{}}", within=within)}


def _keyword(keyword: str, value: Any, schema: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """Translate a keyword that holds no schema; most stay as they are."""
    if keyword in _DROPPED:
        return {}
    match keyword:
        case "description":
            return {keyword: re.sub(r"(?<!\n)\n(?!\n)", " ", value)}
        case "const":
            return {"enum": [value]}
        case "exclusiveMinimum" | "exclusiveMaximum":
            # OpenAPI 3.0, which Kubernetes speaks, has a number and a boolean where JSON schema has one number.
            inclusive = keyword.replace("exclusiveM", "m")
            if inclusive in schema:
                raise SchemaError(f"{at}: {keyword} beside {inclusive}; keep one of them")
            return {inclusive: value, keyword: True}
        case "format" if value not in _FORMATS:
            raise SchemaError(f"{at}: Kubernetes does not check the format {value!r}; use a pattern or a CEL rule")
        case "type" if value not in _TYPES:
            raise SchemaError(f"{at}: type {value!r}; a structural schema has exactly one type, and null is none")
    if keyword not in _COPIED:
        raise SchemaError(
            f"{at or 'the kind'}: a structural schema has no {keyword!r}; say it with fields and CEL rules"
        )
    return {keyword: value}
