"""Two versions of the same CRD. A single cluster can have only one of them, because the CRDs have equal names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["EARLIER", "LATER", "OrderVersion"]

_GROUP: Final = "shop.example.com"
_PLURAL: Final = "orders"
_KIND: Final = "Order"
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 1}


@dataclass(frozen=True, slots=True)
class OrderVersion:
    """Version of the kind Order, with its schema and an example that only this schema accepts."""

    version: str
    properties: Mapping[str, Any]
    """Schema of `spec`; all fields are required."""
    example: Mapping[str, Any]
    """`spec` of an object."""

    crd = f"{_PLURAL}.{_GROUP}"
    """Name of the CRD, equal for all versions."""

    @property
    def api_version(self) -> str:
        """`apiVersion` of objects."""
        return f"{_GROUP}/{self.version}"

    def definition(self) -> str:
        """Return the manifest of a CRD that serves only this version."""
        spec = {"type": "object", "required": sorted(self.properties), "properties": dict(self.properties)}
        schema = {"type": "object", "required": ["spec"], "properties": {"spec": spec}}
        served = {"name": self.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        return json.dumps(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": self.crd},
                "spec": {
                    "group": _GROUP,
                    "names": {"kind": _KIND, "plural": _PLURAL, "singular": _KIND.lower()},
                    "scope": "Namespaced",
                    "versions": [served],
                },
            }
        )

    def order(self, name: str) -> str:
        """Return the manifest of an object."""
        return json.dumps(
            {
                "apiVersion": self.api_version,
                "kind": _KIND,
                "metadata": {"name": name, "namespace": "default"},
                "spec": dict(self.example),
            }
        )


EARLIER: Final = OrderVersion(
    "v1alpha1", properties={"item": _TEXT, "amount": _NUMBER}, example={"item": "tea", "amount": 2}
)
_LINE: Final = {"type": "object", "required": ["amount", "item"], "properties": {"item": _TEXT, "amount": _NUMBER}}
LATER: Final = OrderVersion(
    "v1",
    properties={"customer": _TEXT, "lines": {"type": "array", "minItems": 1, "items": _LINE}},
    example={"customer": "hank", "lines": [{"item": "tea", "amount": 2}]},
)
