"""Parser of requests to a cluster in memory, with the rules of a kube-apiserver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.client.resources import Resource
from kplane.provider.client.transport import HttpRequest
from kplane.provider.errors import ProviderError, api_error
from kplane.provider.testing.faults import Verb
from kplane.provider.testing.store import Object
from kplane.provider.testing.traits import has_status

__all__ = ["Asked", "Kinds", "asked_of", "matcher"]

Kinds = Mapping[tuple[str, str], Resource]
"""Kinds by apiVersion and plural."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request. Parts that path and query omit are empty."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    verb: Verb
    metadata_only: bool

    def shown(self, body: Object) -> Object:
        """Return an object, or only its metadata if the request asks for metadata."""
        if not self.metadata_only:
            return body
        return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": body["metadata"]}


def asked_of(request: HttpRequest, kinds: Kinds) -> Asked | Object:
    """Parse a request, or return the answer to a request for discovery or health. Raises NotFound for other paths."""
    root, *parts = [unquote(part) for part in request.path.strip("/").split("/")]
    size = {"api": 1, "apis": 2}.get(root, 0)
    version, rest = "/".join(parts[:size]), parts[size:]
    if root in {"readyz", "livez", "healthz"}:
        return {}
    if size and not rest and (served := [kind for (api, _), kind in kinds.items() if api == version]):
        resources = [{"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced} for kind in served]
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
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
    """Return a function that tells whether an object is in the requested collection.

    Raises BadRequest for selectors that a FakeCluster does not support.
    """
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
