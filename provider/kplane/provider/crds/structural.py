"""Translation of the JSON schema of a class, by pydantic or msgspec, to a structural schema of Kubernetes.

Null is the absence of a field, unless the schema has `nullable`. A keyword that has no translation raises SchemaError:
a keyword that is dropped silently would be lost validation.
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
"""Formats that Kubernetes checks, with the same meaning in JSON schema. The format `duration` has another meaning."""
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_MAP_KEYS: Final = "x-kubernetes-list-map-keys"
_PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
_NULL: Final = {"type": "null"}
_INTEGER_OR_STRING_OPTIONS: Final = (
    [{"type": "integer"}, {"type": "string"}],
    [{"type": "string"}, {"type": "integer"}],
)
_ROOT_TEXTS: Final = {
    "apiVersion": "APIVersion is the group and the version of the schema of this object.",
    "kind": "Kind is the type of this object.",
}


class SchemaError(ProviderError, ValueError):
    """A structural schema cannot express a class. The message names the place in the class."""


def structural_schema(cls: type[Any]) -> dict[str, Any]:
    """Return the `openAPIV3Schema` of a kind, for a pydantic model, a Struct, a dataclass or an attrs class.

    Raises SchemaError if a structural schema cannot express the class.
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
    """Translate a JSON schema with its `$defs`. Raises SchemaError for a keyword that has no translation."""
    return _Translation(schema.get("$defs", {})).translate(schema, at="", within=())


class _Translation:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def translate(self, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]) -> dict[str, Any]:
        """Translate a schema. `at` is its path in the kind, `within` the names of the definitions that contain it."""
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
        """Replace references by their definitions, and drop null. Keywords beside a reference win."""
        while schema.keys() & {"$ref", "allOf"} or _NULL in schema.get("anyOf", ()):
            siblings = {key: value for key, value in schema.items() if key not in {"$ref", "allOf", "anyOf"}}
            if "anyOf" in schema:
                others = [option for option in schema["anyOf"] if option != _NULL]
                # Sort the keys, because pydantic sorts the keys of a schema without null.
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
        return _with_kubernetes_keywords(schema), within

    def _additional(self, value: Any, schema: Mapping[str, Any], *, at: str, within: tuple[str, ...]) -> dict[str, Any]:
        if value is False or (value is True and schema.get(_PRESERVES)):
            return {}  # the API server itself prunes, rejects or keeps unknown fields
        if "properties" in schema:
            raise SchemaError(
                f"{at}: additionalProperties beside properties; use a dict, or give the model"
                " json_schema_extra=PRESERVE_UNKNOWN_FIELDS"
            )
        if value is True:
            return {_PRESERVES: True}
        return {"additionalProperties": self.translate(value, at=f"{at}{{}}", within=within)}


def _require_keys(structural: Mapping[str, Any], *, at: str) -> None:
    """Raise SchemaError for a list by keys that items may lack: API servers reject such a CustomResourceDefinition."""
    items = structural.get("items", {})
    for key in structural.get(_MAP_KEYS, ()):
        if key not in items.get("required", ()) and "default" not in items.get("properties", {}).get(key, {}):
            raise SchemaError(
                f"{at}: list_map({key!r}) needs items with a field {key!r} that is required or has a default; use a"
                " model for them"
            )


def _with_kubernetes_keywords(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace keywords of JSON schema by the keywords of Kubernetes with the same meaning."""
    if schema.get("type") == "integer" and not schema.keys() & {"format", "enum", "const"}:
        return dict(sorted({"format": "int64", **schema}.items()))
    if "enum" in schema and "type" not in schema and len(types := {type(value) for value in schema["enum"]}) == 1:
        # The JSON schema of msgspec leaves out the type of a Literal and of an Enum.
        (only,) = types
        return {**schema, "type": _TYPES_OF_VALUES[only]} if only in _TYPES_OF_VALUES else schema
    if schema.get("anyOf") in _INTEGER_OR_STRING_OPTIONS:
        return {**schema, _INT_OR_STRING: True}
    if schema.get("uniqueItems") is True:
        others = {key: value for key, value in schema.items() if key != "uniqueItems"}
        return {**others, "x-kubernetes-list-type": "set"}
    return schema


def _keyword(keyword: str, value: Any, schema: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """Translate a keyword that holds no schema. Most keywords are copied."""
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
            # OpenAPI 3.0, the format of Kubernetes, needs a number and a boolean instead of the number of JSON schema.
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
