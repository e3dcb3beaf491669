"""Reads the state of a written object from the answer to the write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kplane.provider.client.resources import Resource

__all__ = ["WriteObserver", "Written", "read_removal", "read_write"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """The state of an object after a write. `object` is None if the write removed the object.

    After a removal, `resource_version` is that of the last state, or empty if the answer does not contain it.
    """

    resource: Resource
    namespace: str
    name: str
    uid: str
    resource_version: str
    object: Object | None


WriteObserver = Callable[[Written], None]
"""A callback that the event loop runs before the write returns. It must not block, raise, or change the object."""


def read_write(resource: Resource, answer: Object) -> Written | None:
    """Return the result of a create, update or patch; None for an answer of another kind, such as a Scale."""
    if not _is_object(resource, answer):
        return None
    metadata = answer["metadata"]
    return _written(resource, metadata, None if _is_last_finalizer_gone(answer) else answer)


def read_removal(
    resource: Resource, answer: Object, *, name: str, namespace: str | None, uid: str | None
) -> Written | None:
    """Return the result of a delete; None if the answer lacks it. `uid` is the precondition, if given.

    A server answers with a Status if the object is gone, and with the object if finalizers or a grace period hold it.
    Some kinds answer with the object although it is gone. Such an object has no deletionTimestamp, or the watch removes
    it.
    """
    if _is_object(resource, answer):
        metadata = answer["metadata"]
        return _written(resource, metadata, answer if metadata.get("deletionTimestamp") else None)
    details = answer.get("details")
    status_uid = details.get("uid") if isinstance(details, Mapping) else None
    removed_uid = status_uid if isinstance(status_uid, str) and status_uid else uid
    if not removed_uid or answer.get("kind") != "Status":
        # Without a uid, a new object of the same name would look as if it were removed.
        return None
    return Written(resource, namespace or "", name, removed_uid, "", None)


def _is_object(resource: Resource, answer: Object) -> bool:
    return (answer.get("apiVersion"), answer.get("kind")) == (resource.api_version, resource.kind)


def _written(resource: Resource, metadata: Mapping[str, Any], obj: Object | None) -> Written:
    return Written(
        resource,
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        object=obj,
    )


def _is_last_finalizer_gone(answer: Object) -> bool:
    """Tell whether an update removed the object, as the generic registry of an API server decides.

    The answer has the previous resourceVersion, because the last state is never stored. A Namespace has further
    finalizers in its spec.
    """
    metadata, spec = answer["metadata"], answer.get("spec")
    held = metadata.get("finalizers") or (spec.get("finalizers") if isinstance(spec, Mapping) else None)
    return bool(metadata.get("deletionTimestamp")) and not held and metadata.get("deletionGracePeriodSeconds") == 0
