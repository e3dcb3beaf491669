"""Answers of a cluster in memory to calls, as a kube-apiserver gives them."""

from __future__ import annotations

from typing import Any

from kplane.provider.client.transport import HttpRequest
from kplane.provider.errors import api_error
from kplane.provider.testing.requests import Asked, matcher
from kplane.provider.testing.store import Object, Store
from kplane.provider.testing.writes import create, patch, update

__all__ = ["answered"]


def answered(store: Store, request: HttpRequest, asked: Asked, body: Any) -> tuple[int, Object]:
    """Carry out a call and return status and answer. Raises ApiErrors."""
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
    found = [each for each in store.of(resource, asked.namespace) if matches(each)]
    if asked.verb == "deletecollection":
        for each in found:
            _ = store.delete(resource, each)
    listed = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
    return listed | {"items": list(map(asked.shown, found)), "metadata": {"resourceVersion": str(store.version)}}


def _deleted(store: Store, asked: Asked, body: Any) -> Object:
    before = store.get(asked.resource, asked.namespace, asked.name)
    for field, wanted in ((body or {}).get("preconditions") or {}).items():
        if wanted != before["metadata"].get(field):
            raise api_error(409, "Conflict", f'{asked.resource.plural} "{asked.name}" has another {field}')
    held = before if (body or {}).get("dryRun") else store.delete(asked.resource, before)
    if held is not None and held["metadata"].get("finalizers"):
        return held
    details = {"name": asked.name, "kind": asked.resource.plural, "uid": before["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
