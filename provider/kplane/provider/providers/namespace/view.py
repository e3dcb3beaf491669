"""How a namespace of a host cluster looks as a cluster of its own: its one namespace is `default`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kplane.provider.client.resources import Resource
from kplane.provider.errors import Invalid, NotFound

__all__ = ["DEFAULT", "NamespaceView", "within"]

DEFAULT: Final = "default"
"""The only namespace there is in the view."""

Object = dict[str, Any]

_EVENTS: Final = frozenset({"v1", "events.k8s.io/v1"})
# The API server refuses an Event that names an object of another namespace.
_EVENT_PARTS: Final = ("metadata", "involvedObject", "regarding", "related")
_PARTS: Final = ("metadata",)


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """Translates between the view (`default`) and the host (`namespace`).

    Besides `metadata.namespace` that concerns the objects that an Event names; nothing else in an object is touched.
    """

    namespace: str

    def to_read(self, resource: Resource, namespace: str | None) -> str:
        """The host's namespace for a read; None is all namespaces of the view. Raises NotFound where it has no such."""
        self._require_namespaced(resource)
        if namespace not in {None, DEFAULT}:
            raise NotFound(404, "NotFound", f"there is no namespace {namespace!r} here; there is {DEFAULT!r} only")
        return self.namespace

    def to_write(self, resource: Resource, namespace: str | None) -> str:
        """The host's namespace for a write. Raises Invalid where it is to be another one, or none."""
        self._require_namespaced(resource)
        if namespace != DEFAULT:
            raise Invalid(
                422, "Invalid", f"{resource}: metadata.namespace: Invalid value: {namespace!r}: must be {DEFAULT!r}"
            )
        return self.namespace

    def inward(self, resource: Resource, found: Object) -> Object:
        """An object of the host as the view has it; it is changed in place."""
        return _moved(found, _parts(resource), self.namespace, DEFAULT)

    def outward(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        """A body written in the view as the host is to have it; the given one stays as it is."""
        return _moved(_copied(resource, body), _parts(resource), DEFAULT, self.namespace)

    def outward_operations(self, resource: Resource, operations: Sequence[Mapping[str, Any]]) -> list[Object]:
        """A JSON patch written in the view as the host is to have it."""
        return [self._outward_operation(resource, operation) for operation in operations]

    def _outward_operation(self, resource: Resource, operation: Mapping[str, Any]) -> Object:
        match str(operation.get("path", "")).split("/")[1:], operation.get("value"):
            case [str(part), "namespace"], str(value) if part in _parts(resource) and value == DEFAULT:
                return {**operation, "value": self.namespace}
            case [str(part)], Mapping() as value:
                return {**operation, "value": self.outward(resource, {part: value})[part]}
            case [], Mapping() as value:
                return {**operation, "value": self.outward(resource, value)}
            case _:
                return {**operation}

    def _require_namespaced(self, resource: Resource) -> None:
        if not resource.namespaced:
            raise NotFound(
                404, "NotFound", f"there are no {resource.plural} here: a namespace has no cluster-scoped objects"
            )


def _parts(resource: Resource) -> tuple[str, ...]:
    """Return where an object says its namespace, and those of the objects that it names."""
    return _EVENT_PARTS if resource.plural == "events" and resource.api_version in _EVENTS else _PARTS


def within(resource: Resource, found: Mapping[str, Any]) -> Object:
    """A copy of an object of the host, as the view of its own namespace has it."""
    copied = _copied(resource, found)
    return NamespaceView(copied["metadata"].get("namespace", "")).inward(resource, copied)


def _copied(resource: Resource, found: Mapping[str, Any]) -> Object:
    parts = _parts(resource)
    return {key: {**value} if key in parts and isinstance(value, Mapping) else value for key, value in found.items()}


def _moved(found: Object, parts: tuple[str, ...], before: str, after: str) -> Object:
    for part in parts:
        content = found.get(part)
        if isinstance(content, dict) and content.get("namespace") == before:
            content["namespace"] = after
    return found
