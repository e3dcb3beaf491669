"""Answers of a cluster in memory, with the content of a kube-apiserver's answers."""

from __future__ import annotations

from typing import Any

from kplane.provider.client.transport import HttpRequest
from kplane.provider.errors import api_error
from kplane.provider.testing.requests import Asked, matcher
from kplane.provider.testing.store import Object, Store
from kplane.provider.testing.writes import create, patch, update

__all__ = ["answered"]


def answered(store: Store, request: HttpRequest, asked: Asked, body: Any) -> tuple[int, Object]:
    """Execute a request, and return HTTP status and answer. Raises ApiErrors."""
    match asked.verb:
        case "create":
            return 201, create(store, asked, body)
        case "update":
            return update(store, asked, body)
        case "patch":
            return patch(store, asked, request.content_type, body)
        case "get":
            return 200, asked.shown(store.get(asked.resource, asked.namespace, asked.name))
        case "delete":
            return 200, _deleted(store, asked, body)
        case _:
            return 200, _collection(store, asked)


def _collection(store: Store, asked: Asked) -> Object:
    resource, matches = asked.resource, matcher(asked)
    selected = [obj for obj in store.of(resource, asked.namespace) if matches(obj)]
    if asked.verb == "deletecollection":
        for obj in selected:
            _ = store.delete(resource, obj)
    collection = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
    return collection | {"items": list(map(asked.shown, selected)), "metadata": {"resourceVersion": str(store.version)}}


def _deleted(store: Store, asked: Asked, body: Any) -> Object:
    before = store.get(asked.resource, asked.namespace, asked.name)
    for field, required in ((body or {}).get("preconditions") or {}).items():
        if required != before["metadata"].get(field):
            raise api_error(409, "Conflict", f'{asked.resource.plural} "{asked.name}" has another {field}')
    remaining = before if (body or {}).get("dryRun") else store.delete(asked.resource, before)
    if remaining is not None and remaining["metadata"].get("finalizers"):
        return remaining
    details = {"name": asked.name, "kind": asked.resource.plural, "uid": before["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
