"""The objects of a cluster in memory, and their history."""

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
"""Metadata that only the server writes."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `before` is None for a new object, `gone` tells that it was removed."""

    version: int
    resource: Resource
    before: Object | None
    after: Object
    gone: bool = False

    def seen_by(self, matches: Callable[[Object], bool]) -> tuple[str, Object] | None:
        """Return type and object of the event of a watch on the objects that match; None if there is none."""
        was = self.before is not None and matches(self.before)
        if not self.gone and matches(self.after):
            return ("MODIFIED" if was else "ADDED"), self.after
        if not was:
            return None
        # An object that leaves the selection is sent as it was, with the version of the change.
        left = self.before or self.after
        return "DELETED", _at_version(left, self.version)


class Store:
    """Keeps objects and every change of them as long as it lives. Raises ApiErrors as a kube-apiserver would."""

    def __init__(self) -> None:
        self.version = 0
        self.history: Final[list[Change]] = []
        self.followers: Final[set[Callable[[Change], None]]] = set()
        self._objects: Final[dict[Key, Object]] = {}
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            _ = self.create(NAMESPACES, "", body)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Return an object, not to be changed. Raises NotFound."""
        found = self._objects.get((resource, namespace, name))
        if found is None:
            raise api_error(404, "NotFound", f'{resource.plural} "{name}" not found')
        return found

    def of(self, resource: Resource, namespace: str) -> Iterator[Object]:
        """Yield the objects of a kind by namespace and name; an empty namespace means all."""
        for key in sorted(key[1:] for key in self._objects if key[0] == resource):
            if not namespace or key[0] == namespace:
                yield self._objects[resource, *key]

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Add an object. Raises AlreadyExists, NotFound without its namespace, and Invalid."""
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
        """Write an object, or only its status. Raises Conflict for an old resourceVersion, and Invalid."""
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
        # The answer to the removal of the last finalizer was never stored: it has the version of before.
        return _at_version(written, old["resourceVersion"]) if gone else written

    def delete(self, resource: Resource, before: Object) -> Object | None:
        """Remove an object; with finalizers it is only marked, and returned."""
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
        """Return the time that the server writes into objects."""
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
    """Leave out what does not make a write a change: the version, and when fields were written."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
    if "managedFields" in metadata:
        metadata["managedFields"] = [each | {"time": None} for each in metadata["managedFields"]]
    return body | {"metadata": metadata}
