"""Handlers, which map events to requests."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar, cast

from kplane.provider.cache.event import Event
from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.typed import Kind, ObjectT
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.controllers.request import ObjectKey, Request
from kplane.provider.errors import DecodeFailed, ProviderError

__all__ = ["Delayed", "Handler", "enqueue_mapped", "enqueue_object", "enqueue_owner", "kinds_of", "watching"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Delayed(Generic[R_co]):
    """A request that is to be reconciled in `seconds`; upstream's `AddAfter`.

    The earliest of several delays for a request counts. A request without a delay is added at once, and leaves an
    earlier delay unchanged.
    """

    request: R_co
    seconds: float


Handler = Callable[[Cluster, Event], Iterable[R | Delayed[R]]]
"""Function that returns requests, some of them `Delayed`, for a cluster and an event of the cluster.

The event loop calls the handler, so the handler must not block. Errors of a handler are logged."""


def enqueue_object() -> Handler[Request]:
    """Reconcile the object of the event."""
    return _object


def enqueue_owner(owner: Kind[Any], *, every_owner: bool = False) -> Handler[Request]:
    """Reconcile the controlling owner of the object, if it is of kind `owner`.

    With `every_owner`, reconcile each owner of that kind. If the owner changes, the former owner is reconciled too. The
    version of the owner's API does not matter (controller-runtime, pkg/handler/enqueue_owner.go).
    """
    return _EnqueueOwner(owner, parse_kind(owner), every_owner)


@dataclass(frozen=True, slots=True)
class _EnqueueOwner:
    owner: Kind[Any]
    name: KindName
    every_owner: bool

    @property
    def kinds(self) -> tuple[Kind[Any], ...]:
        return (self.owner,)

    def __call__(self, cluster: Cluster, event: Event) -> Iterable[Request]:
        # An owner that an update keeps is in both objects: return the owner once.
        return dict.fromkeys(self._owners(cluster, event))

    def _owners(self, cluster: Cluster, event: Event) -> Iterator[Request]:
        for metadata in (event.metadata, event.old_metadata):
            references = metadata.get("ownerReferences") if metadata is not None else None
            for reference in references if isinstance(references, list) else ():
                if (
                    isinstance(reference, dict)
                    and (reference.get("controller") is True or self.every_owner)
                    and reference.get("kind") == self.name.kind
                    and _group(str(reference.get("apiVersion", ""))) == self.name.group
                ):
                    yield Request(cluster.name, self._namespace(cluster, event), str(reference.get("name", "")))

    def _namespace(self, cluster: Cluster, event: Event) -> str:
        owner = cluster.client.known_resource(self.owner)
        if owner is None:
            raise ProviderError(
                f"how {cluster!r} serves {self.name} is not known: await cluster.client.resource() before, as a"
                f" controller does for its handlers"
            )
        return event.namespace if owner.namespaced else ""


def kinds_of(handler: Handler[Any]) -> tuple[Kind[Any], ...]:
    """Return the kinds that a handler needs discovered in each cluster, besides the kind of its events."""
    kinds: tuple[Kind[Any], ...] = getattr(handler, "kinds", ())
    return kinds


Mapped = ObjectKey | Request | Delayed[ObjectKey | Request]
"""Result of a mapping function."""


def enqueue_mapped(
    function: Callable[[Cluster, ObjectT], Iterable[Mapped]], *, preserve_cluster: bool = False
) -> Handler[Request]:
    """Reconcile the keys that `function` returns for a cluster and an object; for an update, also for the old object.

    The object is a dict, or an instance if the kind is watched as a class. An object that the class cannot decode is
    logged. Returned keys belong to the same cluster; `Delayed(key, seconds)` is reconciled later. With
    `preserve_cluster`, a Request keeps its own cluster, so an event in one cluster can lead to work in other clusters.

    Events keep their order, so `function` is a plain function: a mapping function reads caches
    (`cluster.cache.informer(kind).list()`) and makes no API calls. Raises ProviderError for a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        raise ProviderError(
            f"{function.__name__} cannot map events, because it is a coroutine function; give a plain function that "
            f"reads from informers (`cluster.cache.informer(kind).list()`), and do slow work in the reconcile"
        )
    return _EnqueueMapped(function, preserve_cluster)


@dataclass(frozen=True, slots=True)
class _EnqueueMapped:
    function: Callable[[Cluster, Any], Iterable[Mapped]]
    preserve_cluster: bool
    watched_as: type[Any] | None = None

    def __call__(self, cluster: Cluster, event: Event) -> Iterable[Request | Delayed[Request]]:
        return dict.fromkeys(self._mapped(cluster, event))

    def _request(self, cluster: Cluster, key: ObjectKey | Request) -> Request:
        if self.preserve_cluster and isinstance(key, Request):
            return key
        return Request(cluster.name, key.namespace, key.name)

    def _mapped(self, cluster: Cluster, event: Event) -> Iterator[Request | Delayed[Request]]:
        for obj in self._objects(cluster, event):
            for mapped in self.function(cluster, obj):
                if isinstance(mapped, Delayed):
                    yield Delayed(self._request(cluster, mapped.request), mapped.seconds)
                else:
                    yield self._request(cluster, mapped)

    def _objects(self, cluster: Cluster, event: Event) -> Iterator[Any]:
        cls = self.watched_as
        if cls is None:
            yield event.object
            if event.old is not None:
                yield event.old
            return
        for decode in (event.decode_as, event.decode_old_as):
            try:
                obj = decode(cls)
            except DecodeFailed as error:
                log.warning("failed to map an event of cluster %s: %s", cluster.name, error)
                continue
            if obj is not None:
                yield obj


def watching(handler: Handler[R], cls: type[Any]) -> Handler[R]:
    """Return the handler for events of a kind that is watched as a class."""
    if isinstance(handler, _EnqueueMapped):
        return cast("Handler[R]", replace(handler, watched_as=cls))
    return handler


def _object(cluster: Cluster, event: Event) -> Iterable[Request]:
    return (Request(cluster.name, event.namespace, event.name),)


def _group(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""
