"""What a Kubernetes schema can say and JSON schema cannot, as keywords for the schema of a field or a class.

In pydantic they are `json_schema_extra` of a Field or of the model's configuration, and in msgspec `extra_json_schema`
of a Meta. Join several with `|`.
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
"""Of a list that is replaced as a whole."""
SET: Final[Keywords] = {"x-kubernetes-list-type": "set"}
"""Of a list of different values, which several field managers may own together."""
ATOMIC_MAP: Final[Keywords] = {"x-kubernetes-map-type": "atomic"}
"""Of an object that is replaced as a whole, such as a reference."""
PRESERVE_UNKNOWN_FIELDS: Final[Keywords] = {"x-kubernetes-preserve-unknown-fields": True}
"""Of an object whose fields are kept although the schema does not have them."""
EMBEDDED_RESOURCE: Final[Keywords] = {"x-kubernetes-embedded-resource": True, **PRESERVE_UNKNOWN_FIELDS}
"""Of a whole object of Kubernetes within another, with apiVersion, kind and metadata."""
INT_OR_STRING: Final[Keywords] = {"x-kubernetes-int-or-string": True}
"""Of a number or a text, such as a port; a field of type `int | str` has it by itself."""
NULLABLE: Final[Keywords] = {"nullable": True}
"""Of a field that keeps null; without it null is the same as an absent field."""


def list_map(*keys: str) -> Keywords:
    """Return the keywords of a list whose items are told apart by these fields, so that field managers own items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def rule(
    expression: str,
    message: str,
    *,
    field_path: str | None = None,
    reason: Literal["FieldValueInvalid", "FieldValueForbidden"] = "FieldValueInvalid",
) -> Keywords:
    """Return a CEL rule for `rules`, with the sentence that the API server answers if the rule does not hold.

    `field_path` points the error at a field below, such as `.size`. A rule that reads `oldSelf` is checked on updates.
    """
    described = {"rule": expression, "message": message, "reason": reason}
    return {**described, "fieldPath": field_path} if field_path is not None else described


def rules(*items: Keywords) -> Keywords:
    """Return the keywords for rules that `rule` has made."""
    return {"x-kubernetes-validations": list(items)}
