"""Handlers: which requests an event leads to."""

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

    Of several delays for one request the earliest counts. A request without a delay comes at once, and leaves the delay
    as it is.
    """

    request: R_co
    seconds: float


Handler = Callable[[Cluster, Event], Iterable[R | Delayed[R]]]
"""Returns requests, some of them `Delayed`. It is called in the event loop with the cluster that an event is from, and
must not block; what it raises is logged."""


def enqueue_object() -> Handler[Request]:
    """Reconcile the object of the event."""
    return _object


def enqueue_owner(owner: Kind[Any], *, every_owner: bool = False) -> Handler[Request]:
    """Reconcile the controlling owner of the object, if it is of kind `owner`.

    With `every_owner`, each owner of that kind. If the owner changes, the former owner is reconciled too. The version
    of the owner's API does not matter (controller-runtime, pkg/handler/enqueue_owner.go).
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
        # What stays in a change is asked for once.
        return dict.fromkeys(self._owners(cluster, event))

    def _owners(self, cluster: Cluster, event: Event) -> Iterator[Request]:
        for metadata in (event.metadata, event.old_metadata):
            references = metadata.get("ownerReferences") if metadata is not None else None
            for each in references if isinstance(references, list) else ():
                if (
                    isinstance(each, dict)
                    and (each.get("controller") is True or self.every_owner)
                    and each.get("kind") == self.name.kind
                    and _group(str(each.get("apiVersion", ""))) == self.name.group
                ):
                    yield Request(cluster.name, self._namespace(cluster, event), str(each.get("name", "")))

    def _namespace(self, cluster: Cluster, event: Event) -> str:
        owner = cluster.client.known_resource(self.owner)
        if owner is None:
            raise ProviderError(
                f"how {cluster!r} serves {self.name} is not known: await cluster.client.resource() before, as a"
                f" controller does for its handlers"
            )
        return event.namespace if owner.namespaced else ""


def kinds_of(handler: Handler[Any]) -> tuple[Kind[Any], ...]:
    """Return the kinds that a handler has to know in each cluster, besides the kind of its events."""
    found: tuple[Kind[Any], ...] = getattr(handler, "kinds", ())
    return found


Mapped = ObjectKey | Request | Delayed[ObjectKey | Request]
"""What a mapping function returns."""


def enqueue_mapped(
    function: Callable[[Cluster, ObjectT], Iterable[Mapped]], *, preserve_cluster: bool = False
) -> Handler[Request]:
    """Reconcile what `function` returns for a cluster and an object; for an update, for the old object too.

    The object is a dict, or an instance if the kind is watched as a class; one that the class cannot decode is logged.
    Returned keys are of the same cluster; `Delayed(key, seconds)` is reconciled later. With `preserve_cluster`, a
    Request keeps its own cluster, so that an event in one cluster leads to work in others. `function` is a plain
    function, because events keep their order: it reads caches (`cluster.cache.informer(kind).list()`) and makes no
    requests. Raises ProviderError for a coroutine function.
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
        for found in self._objects(cluster, event):
            for each in self.function(cluster, found):
                if isinstance(each, Delayed):
                    yield Delayed(self._request(cluster, each.request), each.seconds)
                else:
                    yield self._request(cluster, each)

    def _objects(self, cluster: Cluster, event: Event) -> Iterator[Any]:
        cls = self.watched_as
        if cls is None:
            yield event.object
            if event.old is not None:
                yield event.old
            return
        for decode in (event.decode_as, event.decode_old_as):
            try:
                found = decode(cls)
            except DecodeFailed as error:
                log.warning("failed to map an event of cluster %s: %s", cluster.name, error)
                continue
            if found is not None:
                yield found


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
