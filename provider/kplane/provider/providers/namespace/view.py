"""Translation between a namespace of a host cluster and a cluster whose only namespace is `default`."""

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
"""Fields of an Event with a namespace: API servers reject an Event about an object of another namespace."""


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """Translates between the view (`default`) and the host (`namespace`).

    The view changes only `metadata.namespace`, and the namespaces of objects that an Event names.
    """

    namespace: str

    def to_read(self, resource: Resource, namespace: str | None) -> str:
        """Return the host's namespace for a read. None means all namespaces. Raises NotFound for other namespaces."""
        self._require_namespaced(resource)
        if namespace not in {None, DEFAULT}:
            raise NotFound(404, "NotFound", f"there is no namespace {namespace!r} here; there is {DEFAULT!r} only")
        return self.namespace

    def to_write(self, resource: Resource, namespace: str | None) -> str:
        """Return the host's namespace for a write. Raises Invalid for None and other namespaces than `default`."""
        self._require_namespaced(resource)
        if namespace != DEFAULT:
            raise Invalid(
                422, "Invalid", f"{resource}: metadata.namespace: Invalid value: {namespace!r}: must be {DEFAULT!r}"
            )
        return self.namespace

    def inward(self, resource: Resource, obj: Object) -> Object:
        """Translate an object of the host to the view, in place."""
        return _moved(obj, resource, self.namespace, DEFAULT)

    def outward(self, resource: Resource, obj: Object) -> Object:
        """Translate an object of the view to the host, in place."""
        return _moved(obj, resource, DEFAULT, self.namespace)

    def inward_bytes(self, resource: Resource, data: bytes) -> bytes:
        """Translate a response to the view: an object, a list, or a watch event."""
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            return data  # the decoder reports the error
        if isinstance(body, dict):
            items = body.get("items")
            event = [body["object"]] if body.keys() == {"type", "object"} else []
            for obj in (body, *event, *(items if isinstance(items, list) else ())):
                if isinstance(obj, dict):
                    self.inward(resource, obj)
        return orjson.dumps(body)

    def outward_bytes(self, resource: Resource, body: bytes) -> bytes:
        """Translate the body of a request to the host: an object, a merge patch or a JSON patch."""
        content = orjson.loads(body)
        if isinstance(content, list):
            return orjson.dumps([self._operation(resource, operation) for operation in content])
        return orjson.dumps(self.outward(resource, content) if isinstance(content, dict) else content)

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


def _moved(obj: Object, resource: Resource, before: str, after: str) -> Object:
    for part in _parts(resource):
        content = obj.get(part)
        if isinstance(content, dict) and content.get("namespace") == before:
            content["namespace"] = after
    return obj
