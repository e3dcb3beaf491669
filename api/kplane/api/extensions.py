"""Kubernetes extensions of JSON schema as annotations of models: CEL rules, list types and map types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import core_schema

__all__ = ["ATOMIC_LIST", "ATOMIC_MAP", "Extension", "Rule", "list_map", "rules"]

VALIDATIONS: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule, and the message of the API server if an object violates the rule.

    `field_path` is the field that the error names, below the field with the rule, such as `.virtual.clusterPath`. A
    rule with `oldSelf` is evaluated on updates only.
    """

    rule: str
    message: str
    field_path: str | None = None
    reason: Literal["FieldValueInvalid", "FieldValueForbidden"] = "FieldValueInvalid"

    def as_schema(self) -> JsonDict:
        """Return the rule as an item of `x-kubernetes-validations`."""
        schema: JsonDict = {"rule": self.rule, "message": self.message, "reason": self.reason}
        if self.field_path is not None:
            schema["fieldPath"] = self.field_path
        return schema


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """Annotation that adds keywords to the schema of a type; CEL rules accumulate, other keywords replace."""

    keywords: Mapping[str, Any]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        generated = handler(schema)
        validations = [*generated.get(VALIDATIONS, []), *self.keywords.get(VALIDATIONS, [])]
        generated.update(self.keywords)
        if validations:
            generated[VALIDATIONS] = validations
        return generated


def rules(*items: Rule) -> JsonDict:
    """Return CEL rules as schema keywords, for `Extension(...)` of a field or `json_schema_extra=` of a model."""
    return {VALIDATIONS: [item.as_schema() for item in items]}


def list_map(*keys: str) -> Extension:
    """Return the annotation of a list of type map, whose items are identified by the given fields."""
    return Extension({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)})


ATOMIC_LIST: Final = Extension({"x-kubernetes-list-type": "atomic"})
"""Annotation of a list that is replaced as a whole; duplicates are accepted."""

ATOMIC_MAP: Final[JsonDict] = {"x-kubernetes-map-type": "atomic"}
"""`json_schema_extra` of an object that is replaced as a whole, such as a reference."""
