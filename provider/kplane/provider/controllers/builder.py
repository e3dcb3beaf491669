"""Builder of controllers: chooses the kinds to watch, the clusters and the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast, overload

from typing_extensions import override

from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.typed import Kind, title_of
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import ControllerHost, Provider
from kplane.provider.controllers.handlers import Handler, enqueue_object, enqueue_owner
from kplane.provider.controllers.multicluster import MulticlusterController, Source
from kplane.provider.controllers.options import Options
from kplane.provider.controllers.predicates import Predicate
from kplane.provider.controllers.rate_limiter import Clustered, RateLimiter
from kplane.provider.controllers.reconcile import AnyReconcile, Reconcile, with_cluster
from kplane.provider.controllers.request import Request
from kplane.provider.controllers.sources import Engage, KindSource
from kplane.provider.controllers.workers import Logger
from kplane.provider.errors import ProviderError

__all__ = ["ControllerBuilder", "controller", "engage", "every_owner", "metadata_only", "predicates"]

R = TypeVar("R", bound=Clustered)


@dataclass(frozen=True, slots=True)
class _Predicates:
    predicates: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class _MetadataOnly:
    pass


@dataclass(frozen=True, slots=True)
class _EveryOwner:
    pass


WatchOption = _Predicates | _MetadataOnly | Engage
OwnsOption = WatchOption | _EveryOwner


def predicates(*filters: Predicate) -> _Predicates:
    """Accept only events of a kind that pass all of these predicates."""
    return _Predicates(filters)


def metadata_only() -> _MetadataOnly:
    """Watch only apiVersion, kind and metadata of objects, which saves traffic, memory and decoding."""
    return _MetadataOnly()


def every_owner() -> _EveryOwner:
    """Reconcile each owner of the kind, not only the controlling one."""
    return _EveryOwner()


def engage(
    *,
    local: bool | None = None,
    provider: bool | None = None,
    filter: Callable[[str, Cluster], bool] | None = None,  # noqa: A002 - upstream's word
    from_provider: Provider | None = None,
) -> Engage:
    """Choose the clusters to watch; see `Engage`. Applies to a single kind, or to all kinds in `with_options`."""
    return Engage(local=local, provider=provider, filter=filter, from_provider=from_provider)


@overload
def controller(manager: ControllerHost | None) -> ControllerBuilder[Request]: ...
@overload
def controller(manager: ControllerHost | None, *, request: type[R]) -> ControllerBuilder[R]: ...
def controller(manager: ControllerHost | None, *, request: type[Any] = Request) -> ControllerBuilder[Any]:
    """Describe a controller; `build(reconcile)` makes it and adds it to the manager.

    A kind is a name, such as `"apps/v1/Deployment"` and `"example.com/v1/Widget"`, a Resource, or a class that
    `typed_kind` has declared. The watch of a kind begins in each cluster once the cluster serves the kind. With
    `manager.scoped(name)` the controller watches that cluster alone.

    `request` is a custom type of requests, for controllers with only custom sources and handlers. Raises ProviderError
    if there is no manager.
    """
    if manager is None:
        raise ProviderError("a controller needs a manager, which engages it with clusters: give one to controller()")
    if isinstance(manager, type):
        raise ProviderError(f"{manager.__name__} is a class: give controller() an instance of it")
    return ControllerBuilder(manager, request=request)


class ControllerBuilder(Generic[R]):
    """Builder of a controller; see `controller`."""

    def __init__(self, manager: ControllerHost, *, request: type[R]) -> None:
        self._manager = manager
        self._request = request
        self._name: str | None = None
        self._for: Kind[Any] | None = None
        self._watches: list[_Watch[R]] = []
        self._owns: list[tuple[Kind[Any], tuple[OwnsOption, ...]]] = []
        self._raw: list[tuple[Source[R], Engage | None]] = []
        self._filter: tuple[Predicate, ...] = ()
        self._options: Options[R] = Options()
        self._reconcile: AnyReconcile[R] | None = None
        self._pending = True
        manager.expect(self)

    @override
    def __repr__(self) -> str:
        kind = title_of(self._for) if self._for is not None else "without a name"
        return f"controller {self._name or kind}"

    @property
    def pending(self) -> bool:
        """Whether `build` was not called yet."""
        return self._pending

    def named(self, name: str) -> Self:
        """Set the name for logs and metrics; the default is the lower-case kind of `for_`."""
        self._name = name
        return self

    def for_(self, kind: Kind[Any], *options: WatchOption) -> Self:
        """Reconcile the objects of this kind."""
        if self._for is not None:
            raise ProviderError("for_() must only be called once: use watches() for further kinds")
        self._for = kind
        self._watches.append(_Watch(kind, cast("Handler[R]", self._plain(enqueue_object(), "for_()")), options))
        return self

    def owns(self, kind: Kind[Any], *options: OwnsOption) -> Self:
        """Reconcile the object of `for_` that controls an object of this kind; with `every_owner`, each owner."""
        self._owns.append((kind, options))
        return self

    def watches(self, kind: Kind[Any], handler: Handler[R], *options: WatchOption) -> Self:
        """Reconcile the requests that `handler` returns for the events of this kind."""
        self._watches.append(_Watch(kind, handler, options))
        return self

    def watches_metadata(self, kind: Kind[Any], handler: Handler[R], *options: WatchOption) -> Self:
        """Watch a kind as `watches` does, with only the metadata of the objects."""
        return self.watches(kind, handler, metadata_only(), *options)

    def watches_raw(self, source: Source[R], engage: Engage | None = None) -> Self:
        """Reconcile the requests of a custom source, such as a `Channel`; filters do not apply to the source.

        A source with `for_cluster` runs in each cluster that `engage` chooses. Other sources are independent of
        clusters.
        """
        self._raw.append((source, engage))
        return self

    def with_filter(self, *filters: Predicate) -> Self:
        """Accept only events that pass all of these predicates; applies to every kind."""
        self._filter += filters
        return self

    def with_options(
        self,
        *,
        workers: int | None = None,
        per_cluster: int | None = None,
        waiting: int | None = None,
        timeout_seconds: float | None = None,
        grace_seconds: float | None = None,
        weights: Callable[[str], float] | None = None,
        rate_limiter: RateLimiter[R] | None = None,
        logger: Logger | None = None,
        retry_cluster_not_found: bool | None = None,
        while_unreachable: bool | None = None,
        on_failure: Callable[[R, BaseException], Awaitable[None]] | None = None,
        engage: Engage | None = None,
        reconcile: AnyReconcile[R] | None = None,
    ) -> Self:
        """Change options; see `Options`. Omitted options keep their values."""
        given = {
            "workers": workers,
            "per_cluster": per_cluster,
            "waiting": waiting,
            "timeout_seconds": timeout_seconds,
            "grace_seconds": grace_seconds,
            "weights": weights,
            "rate_limiter": rate_limiter,
            "logger": logger,
            "retry_cluster_not_found": retry_cluster_not_found,
            "while_unreachable": while_unreachable,
            "on_failure": on_failure,
            "engage": engage.over(self._options.engage) if engage is not None else None,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._options = dataclasses.replace(self._options, **changes)
        self._reconcile = reconcile if reconcile is not None else self._reconcile
        return self

    def build(self, reconcile: AnyReconcile[R] | None = None) -> MulticlusterController[R]:
        """Make the controller and add it to the manager.

        `reconcile` is a coroutine function that takes a request, or a request and its cluster. Raises ProviderError if
        the reconcile function is missing or given twice. Also raises ProviderError if the controller has no sources or
        no unique name, for an invalid kind, and if the manager has none of the chosen clusters.
        """
        self._pending = False
        function = self._reconcile_function(reconcile)
        name, options = self._named(), self._with_concurrency()
        watches = [watch.source(self._filter) for watch in self._all_watches()]
        if not watches and not self._raw:
            raise ProviderError(f"controller {name} has nothing to watch: call for_(), watches() or watches_raw()")
        built = MulticlusterController(name, function, manager=self._manager, options=options)
        for source in watches:
            built.watch(source)
        for raw, choice in self._raw:
            built.watch(raw, engage=choice)
        self._manager.add(built)
        return built

    def _reconcile_function(self, given: AnyReconcile[R] | None) -> Reconcile[R]:
        if given is not None and self._reconcile is not None:
            raise ProviderError("reconcile is given both to with_options() and to build(): give one of them")
        function = given if given is not None else self._reconcile
        if function is None:
            raise ProviderError("a controller needs a reconcile function: give one to build()")
        return with_cluster(function, get_cluster=self._manager.get_cluster)

    def _named(self) -> str:
        if self._name:
            return self._name
        if self._for is None:
            raise ProviderError("a controller without for_() has no name of its own: call named()")
        name, scope = parse_kind(self._for).kind.lower(), self._manager.scope
        return name if scope is None else f"{name}-{scope or 'local'}"

    def _with_concurrency(self) -> Options[R]:
        if self._options.workers is not None or self._for is None:
            return self._options
        name = parse_kind(self._for)
        at_once = self._manager.group_kind_concurrency.get(f"{name.kind}.{name.group}".rstrip("."))
        return dataclasses.replace(self._options, workers=at_once)

    def _all_watches(self) -> list[_Watch[R]]:
        if not self._owns:
            return self._watches
        if self._for is None:
            raise ProviderError("owns() asks for the owners that for_() names: call for_() too, or use watches()")
        owned: list[_Watch[R]] = []
        for kind, options in self._owns:
            watch_options = tuple(option for option in options if not isinstance(option, _EveryOwner))
            handler = enqueue_owner(self._for, every_owner=len(watch_options) != len(options))
            owned.append(_Watch(kind, cast("Handler[R]", self._plain(handler, "owns()")), watch_options))
        return self._watches + owned

    def _plain(self, handler: Handler[Request], method: str) -> Handler[Request]:
        if self._request is not Request:
            raise ProviderError(
                f"{method} asks for objects, which are of type Request and not {self._request.__name__}: use watches() "
                f"with a handler of your own, or watches_raw()"
            )
        return handler


@dataclass(frozen=True, slots=True)
class _Watch(Generic[R]):
    kind: Kind[Any]
    handler: Handler[R]
    options: tuple[WatchOption, ...]

    def source(self, filters: tuple[Predicate, ...]) -> KindSource[R]:
        """Return the source. Raises ProviderError for an invalid kind, and for options of another method."""
        accepted, clusters, metadata = filters, Engage(), False
        for option in self.options:
            match option:
                case _Predicates(more):
                    accepted += more
                case _MetadataOnly():
                    metadata = True
                case Engage():
                    clusters = option.over(clusters)
                case _:
                    raise ProviderError(
                        f"{option!r} is no option of {title_of(self.kind)}: only owns() takes every_owner()"
                    )
        if not callable(self.handler):
            raise ProviderError(f"the watch of {title_of(self.kind)} needs a handler, such as enqueue_object()")
        return KindSource(self.kind, self.handler, accepted, metadata, clusters)
