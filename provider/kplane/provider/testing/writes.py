"""Writes to a cluster in memory: the new objects, and the new owners of their fields."""

from __future__ import annotations

from typing import Any, Final

from kplane.provider.errors import NotFound, api_error
from kplane.provider.testing.json_patch import patched
from kplane.provider.testing.managers import Manager, Ownership, Write, applied, ownership_of, updated, written
from kplane.provider.testing.requests import Asked
from kplane.provider.testing.shapes import shape_of
from kplane.provider.testing.store import Object, Store
from kplane.provider.testing.traits import has_status, is_created_by_update, normalized

__all__ = ["create", "patch", "update"]

_APPLY: Final = "application/apply-patch+yaml"
_JSON: Final = "application/json-patch+json"
_MERGE: Final = "application/merge-patch+json"
_TYPES: Final = (_APPLY, _JSON, _MERGE)

_FIRST: Final = "before-first-apply"
"""Manager of fields that an object had before its fields had owners."""
_USER_AGENT: Final = "test"
"""User-Agent of the client: the field manager of requests without a field manager."""


def create(store: Store, asked: Asked, body: Object) -> Object:
    """Create an object."""
    return store.create(asked.resource, asked.namespace, _owned(store, asked, None, body))


def update(store: Store, asked: Asked, body: Object) -> tuple[int, Object]:
    """Replace an object. For some kinds, an update creates a missing object."""
    _require_names(asked, body)
    try:
        before = store.get(asked.resource, asked.namespace, asked.name)
    except NotFound:
        if not is_created_by_update(asked.resource) or asked.subresource:
            raise
        return 201, _create_missing(store, asked, _owned(store, asked, None, body))
    uid = before["metadata"]["uid"]
    if ((body.get("metadata") or {}).get("uid") or uid) != uid:
        raise api_error(409, "Conflict", f'{asked.resource.plural} "{asked.name}" has another uid')
    return 200, _replace(store, asked, before, _owned(store, asked, before, body))


def patch(store: Store, asked: Asked, content_type: str, body: Any) -> tuple[int, Object]:
    """Patch an object, or apply a configuration."""
    if content_type not in _TYPES:
        message = f"a FakeCluster has no {content_type}: send {' or '.join(_TYPES)}"
        raise api_error(415, "UnsupportedMediaType", message)
    if content_type == _APPLY:
        return _apply(store, asked, body)
    if "force" in asked.query:
        raise _invalid_options("force: Forbidden: may not be specified for non-apply patch")
    before = store.get(asked.resource, asked.namespace, asked.name)
    after = patched(before, body) if content_type == _JSON else _merged(before, body)
    _require_names(asked, after)
    return 200, _replace(store, asked, before, _owned(store, asked, before, after))


def _apply(store: Store, asked: Asked, config: Any) -> tuple[int, Object]:
    if not asked.query.get("fieldManager"):
        raise _invalid_options("fieldManager: Required value: is required for apply patch")
    try:
        before = store.get(asked.resource, asked.namespace, asked.name)
    except NotFound:
        if asked.subresource:
            raise
        before = None
    _require_config(asked, config)
    live = _unmanaged(before or {"apiVersion": config["apiVersion"], "kind": config["kind"]})
    ownership = _ownership(before)
    if before and not ownership:
        ownership = updated({}, _write(store, asked, "Update", name=_FIRST), {}, live)
    force = asked.query.get("force") == "true"
    after, ownership = applied(ownership, _write(store, asked, "Apply"), live, config, force=force)
    after = _managed(normalized(asked.resource, after), ownership)
    if before is None:
        return 201, _create_missing(store, asked, after)
    _require_names(asked, after)
    return 200, _replace(store, asked, before, after)


def _require_config(asked: Asked, config: Any) -> None:
    """Raise BadRequest for a configuration that cannot be applied here."""
    if not isinstance(config, dict):
        raise api_error(400, "BadRequest", "error decoding YAML: a configuration is a map")
    resource = asked.resource
    if (config.get("apiVersion"), config.get("kind")) != (resource.api_version, resource.kind):
        message = f"invalid object type: {config.get('apiVersion')}, Kind={config.get('kind')}"
        raise api_error(400, "BadRequest", message)
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, dict) or metadata.get("managedFields") is not None:
        raise api_error(400, "BadRequest", "metadata must be a map, and metadata.managedFields must be nil")


def _replace(store: Store, asked: Asked, before: Object, after: Object) -> Object:
    return store.replace(asked.resource, before, after, subresource=asked.subresource)


def _create_missing(store: Store, asked: Asked, body: Object) -> Object:
    """Create the missing object of a write. Raises Conflict if the write has the uid of a deleted object."""
    metadata = body.get("metadata") or {}
    if metadata.get("uid"):
        raise api_error(409, "Conflict", f'{asked.resource.plural} "{asked.name}" is gone')
    _require_names(asked, body)
    # A kube-apiserver ignores the resourceVersion in a write of a missing object.
    metadata = {key: value for key, value in metadata.items() if key != "resourceVersion"}
    return store.create(asked.resource, asked.namespace, body | {"metadata": metadata})


def _owned(store: Store, asked: Asked, before: Object | None, body: Object) -> Object:
    """Return an object for a write, whose writer owns the changed fields."""
    entries = (body.get("metadata") or {}).get("managedFields")
    ownership = _ownership(before)
    if not asked.subresource:
        # Clients without support of managedFields omit them. An empty list removes the owners.
        ownership = {} if entries in ([], [{}]) else ownership_of(entries) or ownership
    after = _unmanaged(normalized(asked.resource, body))
    if before is None or ownership:
        live = _unmanaged(normalized(asked.resource, before or {}))
        ownership = updated(ownership, _write(store, asked, "Update"), live, after)
    return _managed(after, ownership)


def _write(store: Store, asked: Asked, operation: str, *, name: str | None = None) -> Write:
    resource = asked.resource
    name = name or asked.query.get("fieldManager") or _USER_AGENT
    manager = Manager(operation, name, resource.api_version, asked.subresource)
    reset = {"f:metadata", "f:spec"} if asked.subresource else {"f:status"} if has_status(resource) else set[str]()
    return Write(manager, shape_of(resource), frozenset(reset), store.now())


def _ownership(obj: Object | None) -> Ownership:
    return ownership_of(obj["metadata"].get("managedFields")) or {} if obj else {}


def _managed(body: Object, ownership: Ownership) -> Object:
    return body | {"metadata": body["metadata"] | ({"managedFields": written(ownership)} if ownership else {})}


def _unmanaged(body: Object) -> Object:
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != "managedFields"}
    return body | {"metadata": metadata}


def _require_names(asked: Asked, body: Any) -> None:
    """Raise BadRequest or Invalid unless an object has the name and namespace in the path."""
    metadata = (body.get("metadata") or {}) if isinstance(body, dict) else None
    if not isinstance(metadata, dict):
        raise api_error(422, "Invalid", f'{asked.resource.kind} "{asked.name}" is invalid: it is no object')
    for field, expected in (("name", asked.name), ("namespace", asked.namespace or None)):
        actual = metadata.get(field) or (expected if field == "namespace" else None)
        if actual != expected:
            message = f"the {field} of the object ({actual}) does not match the {field} on the URL ({expected})"
            raise api_error(400, "BadRequest", message)


def _invalid_options(message: str) -> Exception:
    return api_error(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: {message}')


def _merged(target: Any, change: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
