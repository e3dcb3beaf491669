"""Runs a provider, a coordinator and the components that work on the clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import FunctionType, TracebackType
from typing import Any, Final, ParamSpec, Self, cast

from kplane.provider.access.config import ClusterConfig
from kplane.provider.aio.cancellation import complete, end_tasks
from kplane.provider.aio.running import keep_running
from kplane.provider.cache.cache import Cache
from kplane.provider.cache.informer import Transform
from kplane.provider.client.agent import require_name, user_agent
from kplane.provider.client.client import Client
from kplane.provider.client.connections import Connections
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.rest import FieldValidation
from kplane.provider.client.server_warnings import WarningHandler
from kplane.provider.client.typed import Kind, ObjectT
from kplane.provider.cluster.cluster import CacheScopes, CallsOf, Cluster, Wiring
from kplane.provider.cluster.context import LOCAL, current_cluster
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.contracts import Aware, Buildable, Coordinator, HasSynced, LocalAware, Provider, Runnable
from kplane.provider.controllers.multicluster import MulticlusterController
from kplane.provider.controllers.options import require_time
from kplane.provider.coordination.basic import Basic
from kplane.provider.errors import ClusterNotReady, ProviderError
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.fleet.view import FleetView
from kplane.provider.manager.checks import Check, Checks

__all__ = ["Manager", "ScopedManager"]

P = ParamSpec("P")


def _explain_missing_name(init: Callable[P, None]) -> Callable[P, None]:
    """Let a call without `name` reach `require_name`, whose error has a remedy. Type checkers still require `name`."""
    function = cast("FunctionType", init)
    function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "name": ""}
    return init


class Manager:
    """Runs a provider, and engages controllers and other components with each of its clusters.

    `config` is the configuration of the local cluster, which `get_cluster("")` returns; with None there is no local
    cluster. Without `provider` the local cluster is the only cluster. `coordinator` decides which clusters this process
    works on if several processes run the same manager; by default this process works on all clusters.

    `name` is the name of the program, such as `my-operator`, and the field manager of each write. Two programs must not
    share a name; all versions and replicas of a program must. The User-Agent of requests begins with name and
    `version`. Raises ProviderError without a name.

    `workers` is the default number of concurrent reconciles of a controller (see `Options`);
    `group_kind_concurrency` sets it by kind, such as `{"ReplicaSet.apps": 4}`. `transform` changes each object before
    it is cached, for example to keep less of it. `cache_scopes` select the objects that are cached, by kind, such as
    `{"v1/Secret": CacheScope(namespaces=("a", "b"))}`, or by a function of cluster and kind. `limits` bound the answers
    of a cluster, and `timeout_seconds` bounds a call; `calls` returns other limits and timeouts for a cluster, such as
    `lambda cluster: CallLimits(timeout_seconds=5)`. `field_validation` is passed to each `Client`. `on_warning` is
    called with each warning of an API server; each text is logged once for its kind. `on_engage_error` is called for
    each failed attempt of a component to engage with a cluster; the manager retries in any case.

    `reconcile_timeout_seconds` is the timeout of reconciles whose controller sets no timeout. Caches list all objects
    again every `relist_seconds`. With `local_keeps_worker`, a reconcile that waits for the local cluster keeps its
    worker. So a slow local cluster, which all reconciles need, does not get more of them at once.

    If the provider implements `HasSynced`, the manager is ready only after the provider has synced. Use
    `await manager.run(stop)`, or `async with manager`. At the end the manager closes and awaits every engagement. A
    manager runs once.
    """

    @_explain_missing_name
    def __init__(
        self,
        config: ClusterConfig | None,
        provider: Provider | None = None,
        *,
        name: str,
        version: str = "",
        awares: Iterable[Aware | LocalAware | Runnable] = (),
        coordinator: Coordinator | None = None,
        workers: int = 1,
        reconcile_timeout_seconds: float = 60.0,
        group_kind_concurrency: Mapping[str, int] | None = None,
        transform: Transform | None = None,
        cache_scopes: CacheScopes | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - frozen
        timeout_seconds: float = 30.0,
        calls: CallsOf | None = None,
        field_validation: FieldValidation = "Warn",
        on_warning: WarningHandler | None = None,
        on_engage_error: Callable[[Cluster, BaseException], None] | None = None,
        engage_timeout_seconds: float = 60.0,
        relist_seconds: float = 3600.0,
        local_keeps_worker: bool = False,
    ) -> None:
        require_name(name, version=version)
        for component, parameter in ((provider, "provider"), (coordinator, "coordinator")):
            if isinstance(component, type):
                raise ProviderError(
                    f"{component.__name__} is a class: give Manager an instance of it as the {parameter}"
                )
        self.name: Final = name
        self.provider: Final = provider
        self.coordinator: Final[Coordinator] = coordinator if coordinator is not None else Basic()
        require_time(reconcile_timeout_seconds)
        self.workers: Final = workers
        self.reconcile_timeout_seconds: Final = reconcile_timeout_seconds
        self.group_kind_concurrency: Final[Mapping[str, int]] = dict(group_kind_concurrency or {})
        self.controllers: Final[dict[str, MulticlusterController[Any]]] = {}
        """Added controllers, by name."""
        self.health_checks: Final = Checks()
        self.ready_checks: Final = Checks()
        if provider is not None and isinstance(provider, HasSynced):
            self.ready_checks.add("provider", _Synced(provider, name=provider.name).check)
        self._local = Cluster(LOCAL, config=config) if config is not None else None
        # Close the idle connections of a cluster with its client, so that none remain after the cluster has left.
        self._connections = Connections(linger_seconds=0)
        wiring = Wiring(
            connections=self._connections,
            before_write=self.coordinator.require_write,
            transform=transform,
            cache_scopes=cache_scopes,
            limits=limits,
            timeout_seconds=timeout_seconds,
            calls=calls,
            field_manager=name,
            user_agent=user_agent(name, version=version),
            field_validation=field_validation,
            on_warning=on_warning,
            relist_seconds=relist_seconds,
            local_keeps_worker=local_keeps_worker,
        )
        if self._local is not None:
            # The local cluster may be used before the manager runs.
            self._local.wire(wiring)
        self._clusters = Clusters(
            coordinated=coordinator is not None,
            wiring=wiring,
            on_error=on_engage_error,
            engage_timeout_seconds=engage_timeout_seconds,
        )
        self._builders: list[Buildable] = []
        self._runnables: list[Runnable] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self._ended = False
        for aware in awares:
            self.add(aware)

    @property
    def clusters(self) -> Clusters:
        """All clusters; the local cluster has the name ""."""
        return self._clusters

    @property
    def connections(self) -> Connections:
        """Connections that the clients of all clusters share."""
        return self._connections

    @property
    def scope(self) -> None:
        """None, because the controllers of a manager watch all clusters."""
        return None

    @property
    def stopping(self) -> bool:
        """Whether the manager has begun to stop."""
        return self._ended

    @property
    def local(self) -> Cluster:
        """The local cluster, also before the manager runs. Raises ProviderError without a `config`."""
        if self._local is None:
            raise ProviderError("this manager has no local cluster: it was made without a configuration")
        return self._local

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """Add a component that works on clusters, runs with the manager, or both; allowed at any time.

        An aware component is engaged with all clusters, present and future. A runnable that fails is restarted after a
        backoff. Raises ProviderError for a controller whose name another controller has.
        """
        if isinstance(what, MulticlusterController):
            self._add_controller(what)
        if isinstance(what, (Aware, LocalAware)):
            self._clusters.add_aware(what)
        elif not isinstance(what, Runnable):
            raise ProviderError(f"{what!r} cannot be added: it has none of engage(), engage_local() and run()")
        if isinstance(what, Runnable):
            self._runnables.append(what)
            if self._running:
                self._start_runnable(what)

    def _add_controller(self, controller: MulticlusterController[Any]) -> None:
        name = controller.name
        host = controller.manager
        if (host.manager if isinstance(host, ScopedManager) else host) is not self:
            raise ProviderError(f"controller {name} was made for another manager: make it by controller() of this one")
        if name in self.controllers:
            raise ProviderError(f"there is a controller {name} already: give this one another name by named()")
        controller.require_clusters(has_local=self._local is not None, has_provider=self.provider is not None)
        self.controllers[name] = controller

    def expect(self, builder: Buildable) -> None:
        """Register a builder, and refuse to run until it has built its controller. `controller()` calls this method."""
        self._builders.append(builder)

    def index_field(self, kind: Kind[ObjectT], field: str, extract: Callable[[ObjectT], Iterable[str]]) -> None:
        """Index a field, so that `cache.list(..., field={field: value})` finds objects by the values of `extract`.

        The index applies to all clusters, present and future. Raises ProviderError if another function indexes the
        field, and for an invalid kind.
        """
        self._clusters.index_field(kind, field, extract)

    def add_health_check(self, name: str, check: Check) -> None:
        """Add a check to `/healthz`, whose failure means that the process should be restarted."""
        self.health_checks.add(name, check)

    def add_ready_check(self, name: str, check: Check) -> None:
        """Add a check to `/readyz`, whose failure means that the process should receive no requests."""
        self.ready_checks.add(name, check)

    def get_cluster(self, name: str) -> Cluster:
        """Return a cluster by its name; "" is the local cluster.

        Raises ClusterNotFound, ClusterNotReady while the cluster is being engaged, ClusterNotOwned if another process
        works on it, and ProviderError if there is no provider.
        """
        if name == LOCAL:
            return self.local
        if self.provider is None:
            raise ProviderError(f"there is no cluster {name!r}: this manager has no multicluster provider")
        cluster = self._clusters.get(name)
        self.coordinator.require_read(name)
        return cluster

    def cluster_from_context(self) -> Cluster:
        """Return the cluster of the current reconcile. Raises ProviderError without one, and as `get_cluster`."""
        name = current_cluster()
        if name is None:
            raise ProviderError("no reconcile is under way here, so there is no cluster in the context")
        return self.get_cluster(name)

    def scoped(self, name: str) -> ScopedManager:
        """Return a view of this manager for a component of a single cluster."""
        return ScopedManager(self, name)

    def cluster_names(self) -> list[str]:
        """Return the names of all clusters except the local cluster, sorted."""
        return self._clusters.names()

    async def run(self, until: asyncio.Event) -> None:
        """Run until the event is set."""
        async with self:
            await until.wait()

    async def __aenter__(self) -> Self:
        if self._running or self._ended:
            raise ProviderError(
                f"this manager {'has run' if self._ended else 'runs'} already: make another one, with its controllers"
            )
        for builder in self._builders:
            if builder.pending:
                raise ProviderError(f"{builder} is described, and not made: call build(reconcile)")
        self._running = True
        if self._local is not None:
            await self._clusters.add_or_replace(self._local)
        for runnable in self._runnables:
            self._start_runnable(runnable)
        self._start("coordinator", lambda: self.coordinator.run(_EngagementTarget(self._clusters)))
        if self.provider is not None:
            provider, view = self.provider, FleetView(self._clusters, provider=self.provider)
            self._start(f"provider {provider.name}", lambda: provider.run(view))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running, self._ended = False, True
        try:
            # Stop the provider first, then the coordinator. The coordinator withdraws all work, which the controllers
            # drain: controllers run until the last engagement is closed.
            for name in [name for name in reversed(self._tasks) if not name.startswith("runnable")]:
                await self._stop(name)
        finally:
            try:
                await self._clusters.aclose()
            finally:
                await complete(map(self._stop, tuple(self._tasks)))
                await self._connections.aclose()

    def _start_runnable(self, runnable: Runnable) -> None:
        self._start(f"runnable {len(self._tasks)} {type(runnable).__name__}", runnable.run)

    def _start(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks[name] = asyncio.create_task(keep_running(name, run), name=name)

    async def _stop(self, name: str) -> None:
        await end_tasks([self._tasks.pop(name)])


class ScopedManager:
    """View of a manager for components of a single cluster; upstream's scopedManager.

    Client, cache and recorder belong to the current instance of the cluster, and raise as `Manager.get_cluster`. A
    controller that is built with this view watches this cluster alone. Added components run with the manager.
    """

    def __init__(self, manager: Manager, name: str) -> None:
        self.manager: Final = manager
        self.name: Final = name

    @property
    def scope(self) -> str:
        """Name of the only cluster that the controllers of this view watch."""
        return self.name

    @property
    def cluster(self) -> Cluster:
        """The current instance of the cluster."""
        return self.manager.get_cluster(self.name)

    @property
    def workers(self) -> int:
        """Default number of concurrent reconciles of a controller, as `Manager.workers`."""
        return self.manager.workers

    @property
    def reconcile_timeout_seconds(self) -> float:
        """Default timeout of a reconcile, as `Manager.reconcile_timeout_seconds`."""
        return self.manager.reconcile_timeout_seconds

    @property
    def group_kind_concurrency(self) -> Mapping[str, int]:
        """Number of concurrent reconciles by kind, as `Manager.group_kind_concurrency`."""
        return self.manager.group_kind_concurrency

    @property
    def coordinator(self) -> Coordinator:
        """Coordinator that decides which clusters this process works on."""
        return self.manager.coordinator

    @property
    def provider(self) -> Provider | None:
        """Provider that finds the clusters of the manager."""
        return self.manager.provider

    @property
    def clusters(self) -> Clusters:
        """All clusters of the manager."""
        return self.manager.clusters

    def get_cluster(self, name: str) -> Cluster:
        """Return a cluster of the manager, as `Manager.get_cluster`."""
        return self.manager.get_cluster(name)

    def expect(self, builder: Buildable) -> None:
        """Register a builder, as `Manager.expect`."""
        self.manager.expect(builder)

    @property
    def config(self) -> ClusterConfig:
        """Address and credentials of the cluster."""
        return self.cluster.config

    @property
    def client(self) -> Client:
        """The client of the cluster."""
        return self.cluster.client

    @property
    def cache(self) -> Cache:
        """The cache of the cluster."""
        return self.cluster.cache

    def recorder(self, component: str) -> EventRecorder:
        """Return a component's recorder of Events in the cluster."""
        return self.cluster.recorder(component)

    def index_field(self, kind: Kind[ObjectT], field: str, extract: Callable[[ObjectT], Iterable[str]]) -> None:
        """Index a field in the cache of the current instance of the cluster, as `Cache.index_field`.

        The successor of a replaced cluster does not have the index. `Manager.index_field` covers present and future
        clusters.
        """
        self.cluster.cache.index_field(kind, field, extract)

    def add_health_check(self, name: str, check: Check) -> None:
        """Add a check to `/healthz`, as `Manager.add_health_check`."""
        self.manager.add_health_check(name, check)

    def add_ready_check(self, name: str, check: Check) -> None:
        """Add a check to `/readyz`, as `Manager.add_ready_check`."""
        self.manager.add_ready_check(name, check)

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """Add a component, as `Manager.add`."""
        self.manager.add(what)


class _Synced:
    """Check that passes after the first sync of the provider, and from then on.

    `has_synced` may turn false again, for example when a member is added to a MultiProvider. The replica stays ready.
    """

    def __init__(self, provider: HasSynced, *, name: str) -> None:
        self._provider = provider
        self._name = name
        self._passed = False

    async def check(self) -> None:
        self._passed = self._passed or self._provider.has_synced()
        if not self._passed:
            raise ClusterNotReady(f"the provider {self._name} has not read all that stands for clusters; see the log")


class _EngagementTarget:
    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self.wait_changed = clusters.wait_changed
        self.allow = clusters.allow
        self.withdraw = clusters.withdraw
        self.observe_local = clusters.observe_local
        self.ignore_local = clusters.ignore_local

    def names(self) -> list[str]:
        return self._clusters.names(local=True)
