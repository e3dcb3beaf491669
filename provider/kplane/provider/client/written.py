"""What the answer to a write says of the object that was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kplane.provider.client.resources import Resource

__all__ = ["WriteObserver", "Written", "read_removal", "read_write"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """One object as a write left it. `object` is None if the write removed it.

    `resource_version` is that of the object; after a removal that of its last state, or empty if the answer lacks it.
    """

    resource: Resource
    namespace: str
    name: str
    uid: str
    resource_version: str
    object: Object | None


WriteObserver = Callable[[Written], None]
"""Is called in the loop before the write returns. It must not block, raise, or change the object."""


def read_write(resource: Resource, answer: Object) -> Written | None:
    """Return what a create, update or patch made of an object; None if the answer is another kind, such as a Scale."""
    if not _is_object(resource, answer):
        return None
    metadata = answer["metadata"]
    return _written(resource, metadata, None if _is_last_finalizer_gone(answer) else answer)


def read_removal(
    resource: Resource, answer: Object, *, name: str, namespace: str | None, uid: str | None
) -> Written | None:
    """Return what a delete made of an object; None if the answer does not tell. `uid` is the precondition, if given.

    A server answers with a Status if the object is gone. It answers with the object if finalizers or a grace period
    hold it. Some kinds answer with the object although it is gone. Such an object has no deletionTimestamp, or the
    watch removes it.
    """
    if _is_object(resource, answer):
        metadata = answer["metadata"]
        return _written(resource, metadata, answer if metadata.get("deletionTimestamp") else None)
    details = answer.get("details")
    told = details.get("uid") if isinstance(details, Mapping) else None
    found = told if isinstance(told, str) and told else uid
    if not found or answer.get("kind") != "Status":
        # By its name alone, a later object of that name would be taken for the one that is gone.
        return None
    return Written(resource, namespace or "", name, found, "", None)


def _is_object(resource: Resource, answer: Object) -> bool:
    return (answer.get("apiVersion"), answer.get("kind")) == (resource.api_version, resource.kind)


def _written(resource: Resource, metadata: Mapping[str, Any], found: Object | None) -> Written:
    return Written(
        resource,
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        object=found,
    )


def _is_last_finalizer_gone(answer: Object) -> bool:
    """Tell whether an update removed the object, as the generic registry of an API server decides.

    The answer has the resourceVersion of before, because this last state is never stored. A Namespace has more
    finalizers in its spec.
    """
    metadata, spec = answer["metadata"], answer.get("spec")
    held = metadata.get("finalizers") or (spec.get("finalizers") if isinstance(spec, Mapping) else None)
    return bool(metadata.get("deletionTimestamp")) and not held and metadata.get("deletionGracePeriodSeconds") == 0
