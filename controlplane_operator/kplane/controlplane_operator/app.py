"""The running operator: creates, connects and closes its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.api.names import OPERATOR_LEASE
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controllers import add_controllers
from kplane.controlplane_operator.controlplanes.watches import control_planes_of_component
from kplane.controlplane_operator.errors import BackupFailed, OperatorError
from kplane.controlplane_operator.expiry_metrics import ExpiryMetrics
from kplane.controlplane_operator.gateway_trust import GatewayTrust
from kplane.controlplane_operator.gc import ComponentCollector, GrantCollector
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.leadership import Leadership
from kplane.controlplane_operator.metrics import Inventory
from kplane.controlplane_operator.reconcilers import Reconcilers
from kplane.controlplane_operator.registrations.watches import (
    mcms_of_component,
)
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.snapshots.metrics import SnapshotMetrics
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.storage_metrics import StorageMetrics
from kplane.controlplane_operator.watch.informers import RELIST_SECONDS, Informers, cache_scopes
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.data import Usage
from kplane.provider import (
    LOCAL,
    Client,
    Cluster,
    ClusterConfig,
    Manager,
)
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.contracts import EngagementTarget
from kplane.provider.serving.http import Serving
from kplane.workloads import ProcessRuntime
from kplane.workloads.pods import PodRuntime

__all__ = ["collectors", "run_operator"]

_log: Final = logging.getLogger(__name__)

_CALL_SECONDS: Final = 10.0
_RECONCILE_SECONDS: Final = 90.0


def collectors(stores: Stores, *, usage: Callable[[str], Usage | None]) -> tuple[Collector, ...]:
    """Return the collectors that read metrics from the caches at each scrape; `usage` is as in `StorageMetrics`."""
    inventory = Inventory(stores.control_planes)
    return inventory, ExpiryMetrics(stores), StorageMetrics(stores, usage=usage), SnapshotMetrics(stores)


async def run_operator(settings: OperatorConfig, *, stop: asyncio.Event) -> None:
    """Run the operator until `stop` is set; components of control planes keep running afterwards.

    Only the holder of the Lease writes. Other replicas of its installation watch the objects, so that they can take
    over at once.

    Raises KubeconfigError, RuntimeFailure or OSError if the operator cannot start. Raises LeaseLost if the Lease was
    lost, and AnotherOperator if an operator of another installation holds it. Raises an exception group with the error
    of a task that failed.
    """
    # Open the storage before any thread starts: the library for buckets reads its CA from the environment.
    open_storage = _open_snapshots(settings)
    config = settings.management_config()
    default_credentials = (
        ClusterConfig.load(settings.cluster_kubeconfig) if settings.cluster_kubeconfig is not None else None
    )

    async def work(target: EngagementTarget) -> None:
        await operator.work(target)

    async with AsyncExitStack() as stack:
        leadership = await stack.enter_async_context(
            Leadership(settings.election, config=config, state_dir=settings.state_dir, work=work)
        )
        manager = Manager(
            config,
            name="kplane",
            coordinator=leadership,
            workers=settings.workers,
            reconcile_timeout_seconds=_RECONCILE_SECONDS,
            cache_scopes=cache_scopes(settings.namespace),
            timeout_seconds=_CALL_SECONDS,
            relist_seconds=RELIST_SECONDS,
            local_keeps_worker=True,
        )
        client = manager.local.client
        snapshots = open_storage(client) if open_storage is not None else None
        if snapshots is not None:
            stack.callback(snapshots.close)
        context = _context(manager.local, settings)
        stack.push_async_callback(context.connections.aclose)
        stack.push_async_callback(context.brief_connections.aclose)
        context.metrics.elected(OPERATOR_LEASE, leading=lambda: leadership.leading)
        operator = _Operator(
            settings,
            context=context,
            manager=manager,
            default_credentials=default_credentials,
            snapshots=snapshots,
            leadership=leadership,
        )
        stack.push_async_callback(operator.close)
        serving = Serving(
            manager,
            host=settings.listen.host,
            port=settings.listen.port,
            cluster_labels=False,
            registry=context.metrics.registry,
            collectors=[operator.metrics],
        )
        await stack.enter_async_context(manager)
        await stack.enter_async_context(operator.watching())
        # Ends the work of a leader, before the runtime of pods and the manager close.
        stack.push_async_callback(leadership.stop)
        _log.info("running", extra={"listen": str(settings.listen)})
        await _first(stop.wait(), leadership.wait_failed(), serving.run())
        _log.info("stopping")


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until the first of these ends, and raise its error."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        await end_tasks(tasks)


def _open_snapshots(settings: OperatorConfig) -> Callable[[Client], SnapshotStorage] | None:
    """Open the storage of snapshots; None if it cannot be opened, because control planes work without snapshots."""
    try:
        return settings.open_snapshots()
    except (BackupFailed, OSError) as error:
        _log.error("failed to open the storage of snapshots; mend it, and start the operator again: %s", error)
        return None


def _context(cluster: Cluster, settings: OperatorConfig) -> OperatorContext:
    client = cluster.client
    events, stores, gateway = Events(client), Stores(), settings.gateway
    access = Access(client, cluster.cache, shared=settings.mcm_service_account)
    return OperatorContext(
        client=client,
        stores=stores,
        triggers=Triggers(),
        status=StatusWriter(client, events=events),
        events=events,
        access=access,
        secrets=SecretAccess(
            client,
            stores=stores,
            namespace=settings.namespace,
            role=settings.secrets_role,
            gateway_namespace=gateway.namespace if gateway is not None else None,
        ),
        namespace=settings.namespace,
        gateway=gateway,
    )


class _Operator:
    """The work of a leader, and the health of the operator."""

    def __init__(
        self,
        settings: OperatorConfig,
        *,
        context: OperatorContext,
        manager: Manager,
        default_credentials: ClusterConfig | None,
        snapshots: SnapshotStorage | None,
        leadership: Leadership,
    ) -> None:
        self._context = context
        self._leadership = leadership
        self._known = asyncio.Event()
        self._trust = (
            GatewayTrust(context, context.gateway, ca_file=settings.gateway_ca) if context.gateway is not None else None
        )
        cache = manager.local.cache
        self._reconcilers = reconcilers = Reconcilers(
            settings, context=context, cache=cache, default_credentials=default_credentials, snapshots=snapshots
        )
        # The informers get their handlers first, so that the stores have a change before a controller reconciles it.
        self._informers = Informers(cache, stores=context.stores)
        self._grants_gc = GrantCollector(
            self._informers, stores=context.stores, access=context.access, identities=reconcilers.identities
        )
        add_controllers(manager, reconcilers, context=context, workers=settings.workers)
        usage = reconcilers.data_stores.usage
        self.metrics: Final = _LeaderMetrics(leadership, collectors=collectors(context.stores, usage=usage))
        for name, check in (
            ("caches", self._check_caches),
            ("shared-etcd", self._check_etcd),
            ("leader-election", self._tell_role),
        ):
            manager.add_ready_check(name, check)

    async def close(self) -> None:
        """Close the connections to shared etcds."""
        await self._reconcilers.close()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the pods of the runtime, also in a standby. A runtime of processes supervises, so `work` opens it."""
        runtime = self._reconcilers.runtime
        async with runtime if isinstance(runtime, PodRuntime) else nullcontext():
            yield

    async def work(self, target: EngagementTarget) -> None:
        """Run the tasks of the leader until cancelled, and let the manager reconcile once all caches are complete."""
        context, runtime = self._context, self._reconcilers.runtime
        async with AsyncExitStack() as stack:
            if isinstance(runtime, ProcessRuntime):
                await stack.enter_async_context(runtime)
            stack.callback(runtime.subscribe(self._component_changed))
            collector = ComponentCollector(context.client, runtime=runtime, mcms=self._reconcilers.mcms)
            work = {
                "events": context.events.run(),
                "orphans": collector.run(),
                "sweeping": self._grants_gc.run(),
                "secrets": context.secrets.run(listed=self._grants_gc.synced),
                **({"gateway's certificate": self._trust.run()} if self._trust is not None else {}),
                **self._reconcilers.jobs(known=self._known),
            }
            async with asyncio.TaskGroup() as group:
                for name, task in work.items():
                    group.create_task(task, name=name)
                await self._wait_known()
                target.allow(LOCAL)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await target.withdraw(LOCAL)

    async def _wait_known(self) -> None:
        # Wait for complete caches, because objects would seem to be missing otherwise. Only a list from after the
        # election contains the last writes of the former operator, for example which control plane has which
        # clusterPath.
        await self._grants_gc.synced.wait()
        await self._context.secrets.synced.wait()
        await self._reconcilers.runtime.synced()
        if self._trust is not None:
            await self._trust.known.wait()
        self._known.set()

    def _component_changed(self, component: str) -> None:
        """Reconcile the objects to which a changed component of the runtime belongs."""
        stores, triggers = self._context.stores, self._context.triggers
        for name in control_planes_of_component(component, stores=stores):
            triggers.control_planes.add(name)
        for name in mcms_of_component(component, stores=stores):
            triggers.mcms.add(name)
        self._reconcilers.dedicated_mcms.wake(component)

    async def _check_caches(self) -> None:
        problem = self._informers.problem()
        if self._leadership.leading and not self._known.is_set():
            trust = self._trust.problem() if self._trust is not None else None
            secrets = self._context.secrets.problem()
            problem = secrets or problem or trust or "the management cluster was not listed yet"
        if problem is not None:
            raise OperatorError(problem)

    async def _check_etcd(self) -> None:
        # Only the leader maintains the credentials of the etcd.
        problem = self._reconcilers.data_stores.problem() if self._leadership.leading else None
        if problem is not None:
            raise OperatorError(problem)

    async def _tell_role(self) -> str:
        return self._leadership.role()


class _LeaderMetrics(Collector):
    """Metrics of the objects in the caches. Only the leader shows them, because standbys have the same objects."""

    def __init__(self, leadership: Leadership, *, collectors: Iterable[Collector]) -> None:
        self._leadership = leadership
        self._collectors = tuple(collectors)

    @override
    def collect(self) -> Iterator[Metric]:
        if self._leadership.leading:
            for collector in self._collectors:
                yield from collector.collect()
