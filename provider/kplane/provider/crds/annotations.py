"""Keywords of Kubernetes schemas that JSON schema lacks, for the schema of a field or a class.

pydantic takes keywords as `json_schema_extra` of a Field or of the model's configuration, and msgspec as
`extra_json_schema` of a Meta. Join several keywords with `|`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

__all__ = [
    "ATOMIC_LIST",
    "ATOMIC_MAP",
    "EMBEDDED_RESOURCE",
    "INT_OR_STRING",
    "NULLABLE",
    "PRESERVE_UNKNOWN_FIELDS",
    "SET",
    "list_map",
    "rule",
    "rules",
]

Keywords = dict[str, Any]

ATOMIC_LIST: Final[Keywords] = {"x-kubernetes-list-type": "atomic"}
"""A list that field managers replace as a whole."""
SET: Final[Keywords] = {"x-kubernetes-list-type": "set"}
"""A list of unique values, which several field managers may own together."""
ATOMIC_MAP: Final[Keywords] = {"x-kubernetes-map-type": "atomic"}
"""An object that field managers replace as a whole, such as a reference."""
PRESERVE_UNKNOWN_FIELDS: Final[Keywords] = {"x-kubernetes-preserve-unknown-fields": True}
"""An object whose unknown fields the API server keeps instead of pruning them."""
EMBEDDED_RESOURCE: Final[Keywords] = {"x-kubernetes-embedded-resource": True, **PRESERVE_UNKNOWN_FIELDS}
"""A complete Kubernetes object within another object, with apiVersion, kind and metadata."""
INT_OR_STRING: Final[Keywords] = {"x-kubernetes-int-or-string": True}
"""A number or a string, such as a port. A field of type `int | str` has this keyword by itself."""
NULLABLE: Final[Keywords] = {"nullable": True}
"""A field that may hold null. Without this keyword, null is the same as an absent field."""


def list_map(*keys: str) -> Keywords:
    """Return the keywords of a list whose items are identified by `keys`, so that field managers own items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def rule(
    expression: str,
    message: str,
    *,
    field_path: str | None = None,
    reason: Literal["FieldValueInvalid", "FieldValueForbidden"] = "FieldValueInvalid",
) -> Keywords:
    """Return a CEL rule for `rules`. The API server answers with `message` if the rule does not hold.

    `field_path` is the nested field that the error names, such as `.size`. The API server checks a rule that reads
    `oldSelf` on updates only.
    """
    keywords = {"rule": expression, "message": message, "reason": reason}
    return {**keywords, "fieldPath": field_path} if field_path is not None else keywords


def rules(*items: Keywords) -> Keywords:
    """Return the keywords of a field or class with these rules, which `rule` returns."""
    return {"x-kubernetes-validations": list(items)}
