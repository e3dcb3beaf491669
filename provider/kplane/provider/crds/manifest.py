"""CustomResourceDefinitions of a class that represents a kind, or of a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml
from typing_extensions import override

from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import typed_of
from kplane.provider.crds.structural import structural_schema
from kplane.provider.errors import ProviderError

__all__ = ["Column", "Scale", "crd_manifest", "definition", "to_yaml"]

_CLASS: Final = "typed_kind('example.com/v1/Widget', plural='widgets', namespaced=True)"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`. A column with a priority above 0 is shown by `-o wide` only."""

    name: str
    type: Literal["string", "integer", "number", "boolean", "date"]
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""

    def as_manifest(self) -> dict[str, Any]:
        """Return an item of `additionalPrinterColumns`."""
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.json_path}
        optional = {"priority": self.priority, "description": self.description, "format": self.format}
        return column | {key: value for key, value in optional.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """JSON paths of the fields that the subresource `scale` shows to `kubectl scale` and autoscalers."""

    replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str | None = None
    """Path of a string with a label selector, such as `.status.selector`. An autoscaler needs the selector."""

    def as_manifest(self) -> dict[str, str]:
        """Return the value of the field `scale` in `subresources`."""
        paths = {"specReplicasPath": self.replicas, "statusReplicasPath": self.status_replicas}
        return {**paths, "labelSelectorPath": self.selector} if self.selector is not None else paths


def crd_manifest(
    cls: type[Any],
    *,
    columns: Sequence[Column] = (),
    short_names: Sequence[str] = (),
    categories: Sequence[str] = (),
    selectable: Sequence[str] = (),
    scale: Scale | None = None,
) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a class that `typed_kind` has declared with its plural.

    The definition has the subresource `status` if the class has a field of that name. `selectable` are JSON paths of
    the fields that field selectors may name. Raises SchemaError if a structural schema cannot express the class, and
    ProviderError if the class represents no custom kind.
    """
    typed = typed_of(cls)
    resource = typed.resource if typed is not None else None
    if resource is None or "." not in resource.api_version:
        raise ProviderError(f"{cls.__name__} needs a group, a plural and a scope: declare it as {_CLASS}")
    schema = structural_schema(cls)
    return definition(
        resource,
        schema,
        columns=columns,
        short_names=short_names,
        categories=categories,
        selectable=selectable,
        status="status" in schema["properties"],
        scale=scale,
    )


def definition(
    resource: Resource,
    schema: Mapping[str, Any],
    *,
    columns: Sequence[Column] = (),
    short_names: Sequence[str] = (),
    categories: Sequence[str] = (),
    selectable: Sequence[str] = (),
    status: bool = True,
    scale: Scale | None = None,
) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind with a single version and this structural schema."""
    group, _, name = resource.api_version.rpartition("/")
    subresources: dict[str, Any] = {"status": {}} if status else {}
    if scale is not None:
        subresources["scale"] = scale.as_manifest()
    version: dict[str, Any] = {"name": name, "served": True, "storage": True}
    optional: dict[str, Any] = {
        "subresources": subresources,
        "additionalPrinterColumns": [column.as_manifest() for column in columns],
        "schema": {"openAPIV3Schema": dict(schema)},
        "selectableFields": [{"jsonPath": path} for path in selectable],
    }
    version |= {key: value for key, value in optional.items() if value}
    names: dict[str, Any] = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    aliases = {"shortNames": list(short_names), "categories": list(categories)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names | {key: value for key, value in aliases.items() if value},
            "versions": [version],
        },
    }


def to_yaml(manifest: Mapping[str, Any]) -> str:
    """Return a manifest as YAML, with its order of keys and without anchors."""
    return yaml.dump(dict(manifest), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Repeats shared values, instead of anchors and aliases."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True
