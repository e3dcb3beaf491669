"""Requests to a cluster in memory, as a kube-apiserver reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.client.resources import Resource
from kplane.provider.client.transport import HttpRequest
from kplane.provider.errors import NotFound, ProviderError, api_error
from kplane.provider.testing.faults import Verb
from kplane.provider.testing.json_patch import patched
from kplane.provider.testing.store import Object, Store
from kplane.provider.testing.traits import has_status, is_created_by_update

__all__ = ["Asked", "Kinds", "answered", "asked_of", "matcher"]

_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json-patch+json"
Kinds = Mapping[tuple[str, str], Resource]
"""Kinds by apiVersion and plural."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a path and a query ask for; empty is what they leave out."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    verb: Verb
    metadata_only: bool

    def shown(self, body: Object) -> Object:
        """Return as much of an object as was asked for."""
        if not self.metadata_only:
            return body
        return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": body["metadata"]}


def asked_of(request: HttpRequest, kinds: Kinds) -> Asked | Object:
    """Read a request; discovery is answered at once. Raises NotFound for what is not served."""
    root, *parts = [unquote(part) for part in request.path.strip("/").split("/")]
    size = {"api": 1, "apis": 2}.get(root, 0)
    version, rest = "/".join(parts[:size]), parts[size:]
    if root in {"readyz", "livez", "healthz"}:
        return {}
    if size and not rest and (served := [kind for (api, _), kind in kinds.items() if api == version]):
        listed = [{"name": each.plural, "kind": each.kind, "namespaced": each.namespaced} for each in served]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": listed}
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and (version, rest[2]) in kinds:
        namespace, rest = rest[1], rest[2:]
    resource = kinds.get((version, rest[0])) if rest else None
    if resource is None or len(rest) > 3 or rest[2:] not in ([], ["status"]) or (rest[2:] and not has_status(resource)):
        raise api_error(404, "NotFound", "a FakeCluster does not serve this: test it with a real API server (`k8s`)")
    name, subresource = (*rest[1:], "", "")[:2]
    query = dict(parse_qsl(request.query))
    verb = _verb_of(request.method, named=bool(name), watch=query.get("watch") == "true")
    if resource.namespaced and not namespace and (name or verb == "create"):
        raise api_error(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return Asked(resource, namespace, name, subresource, query, verb, "PartialObjectMetadata" in request.accept)


def _verb_of(method: str, *, named: bool, watch: bool) -> Verb:
    match method:
        case "GET":
            return "watch" if watch else "get" if named else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "patch"
        case _:
            return "delete" if named else "deletecollection"


def matcher(asked: Asked) -> Callable[[Object], bool]:
    """Return whether an object is in the collection asked for. Raises BadRequest for other selectors."""
    try:
        labels = parse_label_selector(asked.query.get("labelSelector", ""))
    except ProviderError as error:
        raise api_error(400, "BadRequest", str(error)) from error
    fields: dict[str, str] = {}
    for part in filter(None, asked.query.get("fieldSelector", "").split(",")):
        key, _, value = part.replace("==", "=").partition("=")
        if key not in {"metadata.name", "metadata.namespace"}:
            raise api_error(400, "BadRequest", f"a FakeCluster has no field selector {part!r}: use a real API server")
        fields[key.removeprefix("metadata.")] = value

    def matches(body: Object) -> bool:
        metadata = body["metadata"]
        if asked.namespace and metadata.get("namespace") != asked.namespace:
            return False
        return labels(metadata.get("labels") or {}) and all(metadata.get(key) == fields[key] for key in fields)

    return matches


def answered(store: Store, request: HttpRequest, asked: Asked, body: Any) -> tuple[int, Object]:
    """Carry out a call and return status and answer. Raises ApiErrors."""
    if asked.verb == "patch" and request.content_type not in {_MERGE, _JSON}:
        message = f"a FakeCluster has no {request.content_type}: test it with a real API server (`k8s`)"
        raise api_error(415, "UnsupportedMediaType", message)
    if asked.verb == "create":
        return 201, store.create(asked.resource, asked.namespace, body)
    if not asked.name:
        return 200, _collection(store, asked)
    return _object(store, request, asked, body)


def _collection(store: Store, asked: Asked) -> Object:
    resource, matches = asked.resource, matcher(asked)
    found = [each for each in store.of(resource, asked.namespace) if matches(each)]
    if asked.verb == "deletecollection":
        for each in found:
            _ = store.delete(resource, each)
    listed = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
    return listed | {"items": list(map(asked.shown, found)), "metadata": {"resourceVersion": str(store.version)}}


def _object(store: Store, request: HttpRequest, asked: Asked, body: Any) -> tuple[int, Object]:
    resource = asked.resource
    try:
        before = store.get(resource, asked.namespace, asked.name)
    except NotFound:
        if asked.verb != "update" or not is_created_by_update(resource) or asked.subresource:
            raise
        return 201, _created(store, resource, asked.namespace, body)
    if asked.verb == "get":
        return 200, asked.shown(before)
    if asked.verb == "delete":
        for field, wanted in ((body or {}).get("preconditions") or {}).items():
            if wanted != before["metadata"].get(field):
                raise api_error(409, "Conflict", f'{resource.plural} "{asked.name}" has another {field}')
        held = store.delete(resource, before)
        return 200, held or {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if asked.verb == "patch":
        body = (patched if request.content_type == _JSON else _merged)(before, body)
    _require_names(asked, body)
    return 200, store.replace(resource, before, body, subresource=asked.subresource)


def _require_names(asked: Asked, body: Any) -> None:
    """Raise BadRequest or Invalid unless an object is the one that the path names."""
    metadata = (body.get("metadata") or {}) if isinstance(body, dict) else None
    if not isinstance(metadata, dict):
        raise api_error(422, "Invalid", f'{asked.resource.kind} "{asked.name}" is invalid: it is no object')
    for field, wanted in (("name", asked.name), ("namespace", asked.namespace or None)):
        found = metadata.get(field) or (wanted if field == "namespace" else None)
        if found != wanted:
            message = f"the {field} of the object ({found}) does not match the {field} on the URL ({wanted})"
            raise api_error(400, "BadRequest", message)


def _created(store: Store, resource: Resource, namespace: str, body: Object) -> Object:
    metadata = body.get("metadata") or {}
    if metadata.get("uid") or metadata.get("resourceVersion"):
        raise api_error(409, "Conflict", f'{resource.plural} "{metadata.get("name")}" is gone')
    return store.create(resource, namespace, body)


def _merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
