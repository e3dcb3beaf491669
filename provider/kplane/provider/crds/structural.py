"""From the JSON schema of a class, by pydantic or msgspec, to the structural schema of a CustomResourceDefinition.

The absence of a field is the only null, unless the schema says `nullable`. Keywords are taken from a list, and anything
else raises: what is dropped silently is validation that is lost silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from kplane.provider.client.typed import without_none
from kplane.provider.errors import ProviderError

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
_TYPES_OF_VALUES: Final = {str: "string", int: "integer"}
_FORMATS: Final = frozenset(
    {
        *("int32", "int64", "float", "double", "byte", "date-time"),
        *("date", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    }
)
"""Formats that Kubernetes checks, and that mean the same in JSON schema; a duration is another text there."""
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_MAP_KEYS: Final = "x-kubernetes-list-map-keys"
_PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
_NULL: Final = {"type": "null"}
_INTEGER_OR_STRING: Final = (
    [{"type": "integer"}, {"type": "string"}],
    [{"type": "string"}, {"type": "integer"}],
)
_ROOT_TEXTS: Final = {
    "apiVersion": "APIVersion is the group and the version of the schema of this object.",
    "kind": "Kind is the type of this object.",
}


class SchemaError(ProviderError, ValueError):
    """A class says something that a structural schema cannot; the message names the place in the class."""


def structural_schema(cls: type[Any]) -> dict[str, Any]:
    """Return the `openAPIV3Schema` of a kind, for a pydantic model, a Struct, a dataclass or an attrs class.

    Raises SchemaError if the class says more than such a schema can.
    """
    structural = to_structural(_json_schema(cls))
    if "properties" not in structural:
        raise SchemaError(f"{cls.__name__} has no fields: an object of a kind has metadata, spec and status")
    root = {name: {"type": "string", "description": text} for name, text in _ROOT_TEXTS.items()}
    fields = {name: schema for name, schema in structural["properties"].items() if name not in root}
    structural["properties"] = {**root, **fields, "metadata": {"type": "object"}}
    structural["required"] = [name for name in structural.get("required", []) if name not in {*root, "metadata"}]
    return structural


def _json_schema(cls: type[Any]) -> Mapping[str, Any]:
    generate: Callable[..., Mapping[str, Any]] | None = getattr(cls, "model_json_schema", None)
    try:
        return generate(by_alias=True, mode="validation") if generate is not None else msgspec.json.schema(cls)
    except Exception as error:
        raise SchemaError(f"failed to make a JSON schema of {cls.__name__}: {error}") from error


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
        _require_keys(structural, at=at)
        if "type" not in structural and not structural.keys() & {_INT_OR_STRING, _PRESERVES}:
            raise SchemaError(f"{at or 'the kind'}: a structural schema needs a type, and {dict(schema)} has none")
        return structural

    def _inline(
        self, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Put a definition where it is referred to; what stands beside the reference wins."""
        while schema.keys() & {"$ref", "allOf"} or _NULL in schema.get("anyOf", ()):
            siblings = {key: value for key, value in schema.items() if key not in {"$ref", "allOf", "anyOf"}}
            if "anyOf" in schema:
                others = [each for each in schema["anyOf"] if each != _NULL]
                # In alphabetical order, as pydantic writes a schema without null.
                merged = {**(others[0] if len(others) == 1 else {"anyOf": others}), **siblings}
                schema = dict(sorted(merged.items()))
                continue
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
        return _in_terms_of_kubernetes(schema), within

    def _additional(self, value: Any, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]) -> dict[str, Any]:
        if value is False or (value is True and schema.get(_PRESERVES)):
            return {}  # the API server prunes, refuses or keeps unknown fields by itself
        if "properties" in schema:
            raise SchemaError(
                f"{at}: additionalProperties beside properties; use a dict, or give the model"
                " json_schema_extra=PRESERVE_UNKNOWN_FIELDS"
            )
        if value is True:
            return {_PRESERVES: True}
        return {"additionalProperties": self.translate(value, at=f"{at}{{}}", within=within)}


def _require_keys(structural: Mapping[str, Any], *, at: str) -> None:
    """Refuse a list by keys that items may lack: an API server takes no such CustomResourceDefinition."""
    items = structural.get("items", {})
    for key in structural.get(_MAP_KEYS, ()):
        if key not in items.get("required", ()) and "default" not in items.get("properties", {}).get(key, {}):
            raise SchemaError(
                f"{at}: list_map({key!r}) needs items with a field {key!r} that is required or has a default; use a"
                " model for them"
            )


def _in_terms_of_kubernetes(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say in the keywords of Kubernetes what JSON schema says in others."""
    if schema.get("type") == "integer" and not schema.keys() & {"format", "enum", "const"}:
        return dict(sorted({"format": "int64", **schema}.items()))
    if "enum" in schema and "type" not in schema and len(types := {type(value) for value in schema["enum"]}) == 1:
        # The JSON schema of msgspec leaves out the type of a Literal and of an Enum.
        (only,) = types
        return {**schema, "type": _TYPES_OF_VALUES[only]} if only in _TYPES_OF_VALUES else schema
    if schema.get("anyOf") in _INTEGER_OR_STRING:
        return {**schema, _INT_OR_STRING: True}
    if schema.get("uniqueItems") is True:
        others = {key: value for key, value in schema.items() if key != "uniqueItems"}
        return {**others, "x-kubernetes-list-type": "set"}
    return schema


def _keyword(keyword: str, value: Any, schema: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """Translate a keyword that holds no schema; most stay as they are."""
    if keyword in _DROPPED:
        return {}
    match keyword:
        case "description":
            return {keyword: re.sub(r"(?<!\n)\n(?!\n)", " ", value)}
        case "default":
            return {} if value is None else {keyword: without_none(value)}
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
