"""Shows a namespace of a host cluster as a cluster of its own, whose one namespace is `default`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kplane.provider.client.resources import Resource
from kplane.provider.errors import Invalid, NotFound

__all__ = ["DEFAULT", "NamespaceView"]

DEFAULT: Final = "default"
"""The only namespace of the view."""

Object = dict[str, Any]

_EVENTS: Final = frozenset({"v1", "events.k8s.io/v1"})
_EVENT_PARTS: Final = ("metadata", "involvedObject", "regarding", "related")
"""The API server refuses an Event that names an object of another namespace."""


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """Translates between the view (`default`) and the host (`namespace`).

    It changes `metadata.namespace` and the namespaces of objects that an Event names, and nothing else.
    """

    namespace: str

    def to_read(self, resource: Resource, namespace: str | None) -> str:
        """Return the host's namespace for a read; None is all namespaces of the view. Raises NotFound for others."""
        self._require_namespaced(resource)
        if namespace not in {None, DEFAULT}:
            raise NotFound(404, "NotFound", f"there is no namespace {namespace!r} here; there is {DEFAULT!r} only")
        return self.namespace

    def to_write(self, resource: Resource, namespace: str | None) -> str:
        """Return the host's namespace for a write. Raises Invalid for another namespace than `default`, or none."""
        self._require_namespaced(resource)
        if namespace != DEFAULT:
            raise Invalid(
                422, "Invalid", f"{resource}: metadata.namespace: Invalid value: {namespace!r}: must be {DEFAULT!r}"
            )
        return self.namespace

    def inward(self, resource: Resource, found: Object) -> Object:
        """Change an object of the host, in place, to what the view shows."""
        return _moved(found, resource, self.namespace, DEFAULT)

    def outward(self, resource: Resource, found: Object) -> Object:
        """Change an object of the view, in place, to what the host has."""
        return _moved(found, resource, DEFAULT, self.namespace)

    def inward_bytes(self, resource: Resource, data: bytes) -> bytes:
        """Translate an answer: an object, a list, or an event of a watch."""
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data  # the decoder reports it
        if isinstance(found, dict):
            items = found.get("items")
            event = [found["object"]] if found.keys() == {"type", "object"} else []
            for each in (found, *event, *(items if isinstance(items, list) else ())):
                if isinstance(each, dict):
                    self.inward(resource, each)
        return orjson.dumps(found)

    def outward_bytes(self, resource: Resource, body: bytes) -> bytes:
        """Translate what is sent: an object, a merge patch or a JSON patch."""
        sent = orjson.loads(body)
        if isinstance(sent, list):
            return orjson.dumps([self._operation(resource, each) for each in sent])
        return orjson.dumps(_moved(sent, resource, DEFAULT, self.namespace) if isinstance(sent, dict) else sent)

    def _operation(self, resource: Resource, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        match str(operation.get("path", "")).split("/")[1:], operation.get("value"):
            case [str(part), "namespace"], str(value) if part in _parts(resource) and value == DEFAULT:
                return {**operation, "value": self.namespace}
            case [str(part)], dict(value):
                _moved({part: value}, resource, DEFAULT, self.namespace)
            case [], dict(value):
                _moved(value, resource, DEFAULT, self.namespace)
            case _:
                pass
        return operation

    def _require_namespaced(self, resource: Resource) -> None:
        if not resource.namespaced:
            raise NotFound(
                404, "NotFound", f"there are no {resource.plural} here: a namespace has no cluster-scoped objects"
            )


def _parts(resource: Resource) -> tuple[str, ...]:
    """Return the fields of an object that hold namespaces."""
    return _EVENT_PARTS if resource.plural == "events" and resource.api_version in _EVENTS else _EVENT_PARTS[:1]


def _moved(found: Object, resource: Resource, before: str, after: str) -> Object:
    for part in _parts(resource):
        content = found.get(part)
        if isinstance(content, dict) and content.get("namespace") == before:
            content["namespace"] = after
    return found
