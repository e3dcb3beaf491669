"""Handlers: which requests an event leads to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from kplane.provider.cache.event import Event
from kplane.provider.client.kinds import resource_of
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.controllers.request import ObjectKey, Request
from kplane.provider.errors import ProviderError

__all__ = ["Handler", "enqueue_mapped", "enqueue_object", "enqueue_owner"]

R = TypeVar("R")

Object = dict[str, Any]

Handler = Callable[[Cluster, Event], Iterable[R]]
"""Called in the event loop with the cluster that an event is from, and must not block; what it raises is logged."""


def enqueue_object() -> Handler[Request]:
    """Reconcile the object of the event."""
    return _object


def enqueue_owner(owner: Resource | str, *, every_owner: bool = False) -> Handler[Request]:
    """Reconcile the controlling owner of the object, if it is of kind `owner`.

    With `every_owner`, each owner of that kind. If the owner changes, the former owner is reconciled too. The version
    of the owner's API does not matter (controller-runtime, pkg/handler/enqueue_owner.go).
    """
    kind = resource_of(owner)
    group = _group(kind.api_version)

    def owners(cluster: Cluster, event: Event) -> Iterable[Request]:
        # What stays in a change is asked for once.
        return dict.fromkeys(each_owner(cluster, event))

    def each_owner(cluster: Cluster, event: Event) -> Iterator[Request]:
        for metadata in (event.metadata, event.old_metadata):
            references = metadata.get("ownerReferences") if metadata is not None else None
            for each in references if isinstance(references, list) else ():
                if (
                    isinstance(each, dict)
                    and (each.get("controller") is True or every_owner)
                    and each.get("kind") == kind.kind
                    and _group(str(each.get("apiVersion", ""))) == group
                ):
                    namespace = event.namespace if kind.namespaced else ""
                    yield Request(cluster.name, namespace, str(each.get("name", "")))

    return owners


def enqueue_mapped(
    function: Callable[[Cluster, Object], Iterable[ObjectKey | Request]], *, preserve_cluster: bool = False
) -> Handler[Request]:
    """Reconcile what `function` returns for a cluster and an object; for an update, for the old object too.

    Returned keys are of the same cluster. With `preserve_cluster`, a Request keeps its own cluster, so that an event in
    one cluster leads to work in others. `function` is a plain function, because events keep their order: it reads
    caches (`cluster.cache.informer(kind).list()`) and makes no requests. Raises ProviderError for a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        raise ProviderError(
            f"{function.__name__} cannot map events, because it is a coroutine function; give a plain function that "
            f"reads from informers (`cluster.cache.informer(kind).list()`), and do slow work in the reconcile"
        )

    def mapped(cluster: Cluster, event: Event) -> Iterable[Request]:
        return dict.fromkeys(each_mapped(cluster, event))

    def each_mapped(cluster: Cluster, event: Event) -> Iterator[Request]:
        for found in (event.object, event.old):
            for each in function(cluster, found) if found is not None else ():
                if preserve_cluster and isinstance(each, Request):
                    yield each
                else:
                    yield Request(cluster.name, each.namespace, each.name)

    return mapped


def _object(cluster: Cluster, event: Event) -> Iterable[Request]:
    return (Request(cluster.name, event.namespace, event.name),)


def _group(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""
