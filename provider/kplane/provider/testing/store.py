"""Objects of a cluster in memory, and the history of their changes."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kplane.provider.client.resources import NAMESPACES, Resource
from kplane.provider.errors import api_error
from kplane.provider.testing.steered import utc_now
from kplane.provider.testing.traits import counts_generations, needs_version, normalized

__all__ = ["Change", "Object", "Store"]

Object = dict[str, Any]
Key = tuple[Resource, str, str]

_OWNED: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Fields of the metadata that only the server writes."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object. `before` is None for a new object; `gone` is true if the object was removed."""

    version: int
    resource: Resource
    before: Object | None
    after: Object
    gone: bool = False

    def seen_by(self, matches: Callable[[Object], bool]) -> tuple[str, Object] | None:
        """Return type and object of the event in a watch on matching objects; None if the watch has no event."""
        was = self.before is not None and matches(self.before)
        if not self.gone and matches(self.after):
            return ("MODIFIED" if was else "ADDED"), self.after
        if not was:
            return None
        # The event for an object that leaves the selection has its former state, with the version of the change.
        former = self.before or self.after
        return "DELETED", _at_version(former, self.version)


class Store:
    """Keeps objects, and all their changes without a limit. Raises the ApiErrors of a kube-apiserver."""

    def __init__(self) -> None:
        self.version = 0
        self.history: Final[list[Change]] = []
        self.followers: Final[set[Callable[[Change], None]]] = set()
        self._objects: Final[dict[Key, Object]] = {}
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            _ = self.create(NAMESPACES, "", body)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object, which the caller must not change. Raises NotFound."""
        obj = self._objects.get((resource, namespace, name))
        if obj is None:
            raise api_error(404, "NotFound", f'{resource.plural} "{name}" not found')
        return obj

    def of(self, resource: Resource, namespace: str) -> Iterator[Object]:
        """Yield the objects of a kind by namespace and name; an empty namespace means all."""
        for key in sorted(key[1:] for key in self._objects if key[0] == resource):
            if not namespace or key[0] == namespace:
                yield self._objects[resource, *key]

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Create an object. Raises AlreadyExists, NotFound for a missing namespace, Invalid, and 400 for a version."""
        metadata = dict(body.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        name = metadata.get("name")
        if not name:
            raise api_error(422, "Invalid", "name or generateName is required")
        if metadata.get("resourceVersion"):
            raise api_error(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if namespace:
            _ = self.get(NAMESPACES, "", namespace)
            metadata["namespace"] = namespace
        if (resource, namespace, name) in self._objects:
            raise api_error(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        for field in _OWNED:
            metadata.pop(field, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.now()}
        if counts_generations(resource):
            metadata["generation"] = 1
        created = {key: value for key, value in body.items() if key != "status"} | {"metadata": metadata}
        return self._commit(resource, None, created)

    def replace(self, resource: Resource, before: Object, body: Object, *, subresource: str) -> Object:
        """Replace an object, or only its status. Raises Conflict for an old resourceVersion, and Invalid."""
        old, new = before["metadata"], dict(body.get("metadata") or {})
        name = old["name"]
        if needs_version(resource) and not new.get("resourceVersion"):
            raise api_error(
                422, "Invalid", "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            )
        if new.get("resourceVersion", old["resourceVersion"]) not in {"", old["resourceVersion"]}:
            message = f'Operation cannot be fulfilled on {resource.plural} "{name}": the object has been modified'
            raise api_error(409, "Conflict", message)
        if new.get("uid", old["uid"]) not in {"", old["uid"]}:
            raise api_error(422, "Invalid", f"metadata.uid: Invalid value: {new['uid']!r}: field is immutable")
        if "deletionTimestamp" in old and not set(new.get("finalizers") or ()) <= set(old.get("finalizers") or ()):
            raise api_error(422, "Invalid", "metadata.finalizers: Forbidden: the object is being deleted")
        managed = {"managedFields": new["managedFields"]} if "managedFields" in new else {}
        if subresource == "status":
            kept = {key: value for key, value in old.items() if key != "managedFields"}
            after = {key: value for key, value in before.items() if key != "status"} | {"metadata": kept | managed}
            after |= {"status": body["status"]} if "status" in body else {}
            return self._commit(resource, before, after)
        for field in (*_OWNED, "name", "namespace"):
            new.pop(field, None)
            if field in old:
                new[field] = old[field]
        after = {key: value for key, value in body.items() if key != "status"} | {"metadata": new}
        after |= {"status": before["status"]} if "status" in before else {}
        if "generation" in old and _content(after) != _content(before):
            new["generation"] = old["generation"] + 1
        gone = "deletionTimestamp" in old and not new.get("finalizers")
        written = self._commit(resource, before, after, gone=gone)
        # The object without its last finalizer is never stored, so the answer has the former version.
        return _at_version(written, old["resourceVersion"]) if gone else written

    def delete(self, resource: Resource, before: Object) -> Object | None:
        """Remove an object and return None, or mark an object with finalizers for deletion and return it."""
        metadata = before["metadata"]
        if not metadata.get("finalizers"):
            _ = self._commit(resource, before, before, gone=True)
            return None
        if "deletionTimestamp" in metadata:
            return before
        marks = {"deletionTimestamp": self.now(), "deletionGracePeriodSeconds": 0}
        if "generation" in metadata:
            marks["generation"] = metadata["generation"] + 1
        return self._commit(resource, before, before | {"metadata": metadata | marks})

    def now(self) -> str:
        """Return the current time in the format of objects."""
        return utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _commit(self, resource: Resource, before: Object | None, after: Object, *, gone: bool = False) -> Object:
        after = normalized(resource, copy.deepcopy(after))
        metadata = after["metadata"]
        metadata.pop("resourceVersion", None)
        if before is not None and not gone and _timeless(after) == _timeless(before):
            return before
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        if gone:
            del self._objects[key]
        else:
            self._objects[key] = after
        change = Change(self.version, resource, before, after, gone)
        self.history.append(change)
        for follower in tuple(self.followers):
            follower(change)
        return after


def _at_version(body: Object, version: str | int) -> Object:
    return body | {"metadata": body["metadata"] | {"resourceVersion": str(version)}}


def _content(body: Object) -> Object:
    return {key: value for key, value in body.items() if key not in {"metadata", "status"}}


def _timeless(body: Object) -> Object:
    """Return an object without the version and without the times of field managers, which make no change."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    if "managedFields" in metadata:
        metadata["managedFields"] = [entry | {"time": None} for entry in metadata["managedFields"]]
    return body | {"metadata": metadata}
