"""CustomResourceDefinitions of classes: pydantic models, msgspec Structs, dataclasses."""

from __future__ import annotations

from kplane.provider.crds.annotations import (
    ATOMIC_LIST,
    ATOMIC_MAP,
    EMBEDDED_RESOURCE,
    INT_OR_STRING,
    NULLABLE,
    PRESERVE_UNKNOWN_FIELDS,
    SET,
    list_map,
    rule,
    rules,
)
from kplane.provider.crds.manifest import Column, Scale, crd_manifest, definition, to_yaml
from kplane.provider.crds.structural import SchemaError, structural_schema, to_structural

__all__ = [
    "ATOMIC_LIST",
    "ATOMIC_MAP",
    "EMBEDDED_RESOURCE",
    "INT_OR_STRING",
    "NULLABLE",
    "PRESERVE_UNKNOWN_FIELDS",
    "SET",
    "Column",
    "Scale",
    "SchemaError",
    "crd_manifest",
    "definition",
    "list_map",
    "rule",
    "rules",
    "structural_schema",
    "to_structural",
    "to_yaml",
]
