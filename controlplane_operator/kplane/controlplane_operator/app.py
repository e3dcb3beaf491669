"""The running operator: creates, connects and closes its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol

from prometheus_client.registry import Collector

from kplane.api.names import OPERATOR_LEASE
from kplane.components.names import place
from kplane.controlplane_operator.addons.bundles import Bundles
from kplane.controlplane_operator.addons.reconciler import ControlPlaneAddonsReconciler
from kplane.controlplane_operator.backends.adopted import AdoptedProvisioner
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.backends.data_stores import DataStores
from kplane.controlplane_operator.backends.dedicated import DedicatedProvisioner
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.classes.reconciler import ControlPlaneClassReconciler
from kplane.controlplane_operator.config import EtcdAt, EtcdService, OperatorConfig
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes
from kplane.controlplane_operator.controlplanes.deletion import Removal
from kplane.controlplane_operator.controlplanes.migration.following import Copies
from kplane.controlplane_operator.controlplanes.migration.migrator import Migrator
from kplane.controlplane_operator.controlplanes.migration.plan import Planner
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.provisioners import Provisioners
from kplane.controlplane_operator.controlplanes.reconciler import ControlPlaneReconciler
from kplane.controlplane_operator.controlplanes.served_revisions import ServedRevisions
from kplane.controlplane_operator.controlplanes.service_monitors import ServiceMonitors
from kplane.controlplane_operator.endpoints.reconciler import ControlPlaneEndpointReconciler
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.expiry_metrics import ExpiryMetrics
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.gateway_trust import GatewayTrust
from kplane.controlplane_operator.gc import ComponentCollector, GrantCollector, watch_grants
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.health import Check, serve_health
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.hibernation.room import Room
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.leadership import Leadership
from kplane.controlplane_operator.metrics import OnFailure, Reconcile
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.registrations.reconciler import ControlPlaneRegistrationReconciler
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.keeper import CredentialsKeeper, service_endpoint
from kplane.controlplane_operator.snapshots.importer import SnapshotImporter
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.metrics import SnapshotMetrics
from kplane.controlplane_operator.snapshots.reconciler import ControlPlaneSnapshotReconciler
from kplane.controlplane_operator.snapshots.restoring import SnapshotRestorer
from kplane.controlplane_operator.snapshots.scheduler import SnapshotScheduler
from kplane.controlplane_operator.snapshots.source import Sources
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.storage_metrics import StorageMetrics
from kplane.controlplane_operator.watch.cache import Key
from kplane.controlplane_operator.watch.event_routing import connect, wake_all, wake_by_component
from kplane.controlplane_operator.watch.informers import RELIST_SECONDS, Informers, cache_scopes
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import Usage
from kplane.provider import LOCAL, Client, Cluster, ClusterConfig, Result
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.controllers.workers import Controller
from kplane.workloads import ProcessRuntime
from kplane.workloads.cpus import usable_cpus
from kplane.workloads.pods import PodRuntime

__all__ = ["collectors", "run_operator"]

_log: Final = logging.getLogger(__name__)

_CALL_SECONDS: Final = 10.0
_ADDONS: Final = "controlplaneaddons"
_MCMS: Final = "dedicatedmcm"
_SCHEDULES: Final = "snapshotschedule"
_PROBES: Final = "credentialprobe"
_RECONCILE_SECONDS: Final = 90.0
_WAITING_FOR_EACH_WORKER: Final = 8
"""Number of reconciles per worker that may wait for a tenant's answer without a worker.

A waiting reconcile costs about ten kilobytes of memory, and no CPU time.
"""


def collectors(stores: Stores, *, usage: Callable[[str], Usage | None]) -> tuple[Collector, ...]:
    """Return the collectors that read metrics from the caches at each scrape; `usage` is as in `StorageMetrics`."""
    return ExpiryMetrics(stores), StorageMetrics(stores, usage=usage), SnapshotMetrics(stores)


async def run_operator(settings: OperatorConfig, *, stop: asyncio.Event) -> None:
    """Run the operator until `stop` is set; components of control planes keep running afterwards.

    Only the holder of the Lease writes. Other replicas of its installation watch the objects, so that they can take
    over at once. Raises KubeconfigError, RuntimeFailure or OSError if the operator cannot start. Raises an exception
    group with LeaseLost if the Lease was lost, or with AnotherOperator if an operator of another installation holds the
    Lease.
    """
    # Open the storage before any thread starts: the library for buckets reads its CA from the environment.
    open_storage = _open_snapshots(settings)
    config = settings.management_config()
    default_credentials = (
        ClusterConfig.load(settings.cluster_kubeconfig) if settings.cluster_kubeconfig is not None else None
    )
    async with AsyncExitStack() as stack:
        leadership = await stack.enter_async_context(
            Leadership(settings.election, config=config, state_dir=settings.state_dir)
        )
        cluster = Cluster(LOCAL, config=config)
        stack.push_async_callback(cluster.aclose)
        cluster.wire(
            Wiring(
                before_write=leadership.require_write,
                cache_scopes=cache_scopes(settings.namespace),
                field_manager="kplane",
                timeout_seconds=_CALL_SECONDS,
                keeps_worker=True,
                relist_seconds=RELIST_SECONDS,
            )
        )
        client = cluster.client
        snapshots = open_storage(client) if open_storage is not None else None
        if snapshots is not None:
            stack.callback(snapshots.close)
        runtime = _runtime(client, settings)
        if isinstance(runtime, PodRuntime):
            # On its own, the runtime of pods only watches. The runtime of processes supervises, so `work` opens it.
            await stack.enter_async_context(runtime)
        context = _context(cluster, settings)
        stack.push_async_callback(context.connections.aclose)
        stack.push_async_callback(context.brief_connections.aclose)
        context.metrics.elected(OPERATOR_LEASE, leading=lambda: leadership.leading)
        assembly = _Assembly(
            settings,
            context=context,
            cluster=cluster,
            runtime=runtime,
            default_credentials=default_credentials,
            snapshots=snapshots,
            leading=lambda: leadership.leading,
        )
        stack.push_async_callback(assembly.close)
        await stack.enter_async_context(
            serve_health(
                settings.listen.host,
                port=settings.listen.port,
                checks=assembly.checks(),
                notes={"leader-election": leadership.role},
                metrics=context.metrics.registry,
            )
        )
        async with asyncio.TaskGroup() as group:
            work = group.create_task(leadership.run(assembly.work), name="work")
            _log.info("running", extra={"listen": str(settings.listen)})
            await stop.wait()
            _log.info("stopping")
            work.cancel()


def _open_snapshots(settings: OperatorConfig) -> Callable[[Client], SnapshotStorage] | None:
    """Open the storage of snapshots; None if it cannot be opened, because control planes work without snapshots."""
    try:
        return settings.open_snapshots()
    except (BackupFailed, OSError) as error:
        _log.error("failed to open the storage of snapshots; mend it, and start the operator again: %s", error)
        return None


def _runtime(client: Client, settings: OperatorConfig) -> ProcessRuntime | PodRuntime:
    if settings.pods is not None:
        return PodRuntime(client, place=place, settings=settings.pods)
    return ProcessRuntime(settings.state_dir, programs=settings.programs_dir)


def _shared_etcd(client: Client, settings: OperatorConfig) -> tuple[SharedEtcd | None, CredentialsKeeper | None]:
    """Return the shared etcd, and the keeper of its credentials if the operator maintains these."""
    match settings.shared_etcd:
        case None:
            return None, None
        case EtcdAt(endpoint, credentials):
            return SharedEtcd.from_directory(credentials, endpoint=endpoint), None
        case EtcdService(service, namespace):
            endpoint = service_endpoint(service, namespace=namespace)
            etcd = SharedEtcd(endpoint, namespace=namespace)
            keeper = CredentialsKeeper(
                client,
                etcd=etcd,
                service=service,
                namespace=namespace,
                directory=settings.state_dir / ".shared-etcd",
            )
            return etcd, keeper


def _context(cluster: Cluster, settings: OperatorConfig) -> OperatorContext:
    client = cluster.client
    events, stores, gateway = Events(client), Stores(), settings.gateway
    access = Access(client, cluster.cache, shared=settings.mcm_service_account)
    return OperatorContext(
        client=client,
        stores=stores,
        queues=Queues(),
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


class _Reconciler(Protocol):
    @property
    def failures(self) -> Failures: ...

    async def reconcile(self, key: Key) -> Result | None: ...


class _Assembly:
    """Parts of the operator, connected to each other."""

    def __init__(
        self,
        settings: OperatorConfig,
        *,
        context: OperatorContext,
        cluster: Cluster,
        runtime: ProcessRuntime | PodRuntime,
        default_credentials: ClusterConfig | None,
        snapshots: SnapshotStorage | None,
        leading: Callable[[], bool],
    ) -> None:
        self._metrics = context.metrics
        self._leading = leading
        self._known = asyncio.Event()
        self._settings = settings
        self._context = context
        self._runtime = runtime
        self._cache = cluster.cache
        self._trust = (
            GatewayTrust(context, context.gateway, ca_file=settings.gateway_ca) if context.gateway is not None else None
        )
        first, self._keeper = _shared_etcd(context.client, settings)
        self._etcds: dict[str | None, SharedEtcd] = {None: first} if first is not None else {}
        for name, at in settings.data_stores.items():
            self._etcds[name] = SharedEtcd.from_directory(at.credentials, endpoint=at.endpoint)
        self._snapshot_jobs = SnapshotJobs()
        self._importer = SnapshotImporter(context, storage=snapshots) if snapshots is not None else None
        # A separate pool of jobs, so that a restore does not wait for all snapshots that are due.
        self._restore_jobs = SnapshotJobs()
        sources = Sources(context, runtime=runtime, data_stores=self._etcds)
        restorer = SnapshotRestorer(context, jobs=self._restore_jobs, storage=snapshots, sources=sources)

        makers: set[str] = set()

        def make(etcd: SharedEtcd | None, *, data_store: str | None, without: ConditionError) -> VirtualProvisioner:
            return VirtualProvisioner(
                context,
                runtime=runtime,
                shared_etcd=etcd,
                restorer=restorer,
                proxy=settings.egress_proxy,
                data_store=data_store,
                without=without,
                makers=makers,
            )

        self._data_stores = DataStores(self._etcds, make=make)
        clusters = ClusterClaims(context.stores)
        provisioners = Provisioners(
            data_stores=self._data_stores,
            dedicated=DedicatedProvisioner(
                context,
                runtime=runtime,
                quota_bytes=settings.etcd_quota_bytes,
                restorer=restorer,
                proxy=settings.egress_proxy,
            ),
            adopted=AdoptedProvisioner(context, default_credentials=default_credentials, clusters=clusters),
        )
        identities = McmIdentities(cluster.client, cluster.cache)
        self._mcms = DedicatedMcms(runtime, identities=identities)
        namespaces = ManagementNamespaces(
            context,
            remade=[context.stores.secrets.forget],
            opened=context.secrets.open,
        )
        claims = AddressClaims(context.stores, address=provisioners.address)
        self._copies = Copies()
        check_target = partial(provisioners.check_target, claim=claims.check)
        planner = Planner(
            context, homes=provisioners.home, check_target=check_target, quota_bytes=settings.etcd_quota_bytes
        )
        migrator = Migrator(context, homes=provisioners.home, planner=planner, copies=self._copies, claim=claims.take)
        switch = EndpointSwitch(context.stores, queues=context.queues)
        replicas = settings.pods.replicas if settings.pods is not None else 1
        use = HostNameUse(context, replicas=replicas)
        probes = CredentialProbes(context, use=use)
        served = ServedRevisions(context, homes=provisioners.home)
        control_planes = ControlPlaneReconciler(
            context,
            probes=probes,
            provisioners=provisioners,
            namespaces=namespaces,
            removal=Removal(
                context,
                namespaces=namespaces,
                provisioner=provisioners.used,
                claims=claims,
                mcms=self._mcms,
                abandon=migrator.abandon,
                served=served,
            ),
            served=served,
            migrator=migrator,
            claims=claims,
            clusters=clusters,
            switch=switch,
            runtime=runtime,
            monitors=ServiceMonitors(context, settings=settings.service_monitors),
            room=Room(
                context,
                limits=settings.awake_limits,
                at_once=settings.starts_at_once or 2 * usable_cpus(),
                replicas=replicas,
            ),
            use=use,
        )
        bundles = Bundles(context.stores.bundles, namespace=settings.namespace)
        kinds: dict[str, _Reconciler] = {
            "controlplane": control_planes,
            "controlplaneclass": ControlPlaneClassReconciler(context, bundles=bundles),
            "controlplaneendpoint": ControlPlaneEndpointReconciler(context, default_credentials=default_credentials),
            "controlplaneregistration": ControlPlaneRegistrationReconciler(
                context,
                switch=switch,
                mcms=self._mcms,
                no_dedicated=settings.why_no_mcm,
            ),
            "controlplanesnapshot": ControlPlaneSnapshotReconciler(
                context, sources=sources, jobs=self._snapshot_jobs, storage=snapshots
            ),
        }
        self._reconcilers: dict[str, tuple[str, Reconcile, OnFailure]] = {
            name: (
                reconciler.failures.kind,
                reconciler.failures.guarded(reconciler.reconcile),
                reconciler.failures.failed,
            )
            for name, reconciler in kinds.items()
        }
        addons = ControlPlaneAddonsReconciler(context, bundles=bundles)
        self._reconcilers[_ADDONS] = CONTROL_PLANES.kind, addons.reconcile, self._counting(_ADDONS)
        self._reconcilers[_PROBES] = CONTROL_PLANES.kind, probes.reconcile, self._counting(_PROBES)
        scheduler = SnapshotScheduler(context)
        self._reconcilers[_SCHEDULES] = CONTROL_PLANES.kind, scheduler.reconcile, self._counting(_SCHEDULES)
        self._dedicated = DedicatedMcmReconciler(
            context,
            runtime=runtime,
            mcms=self._mcms,
            identities=identities,
            program=settings.dedicated_mcm,
            config=settings.management_config() if settings.pods is None else None,
        )
        self._reconcilers[_MCMS] = CONTROL_PLANE_REGISTRATIONS.kind, self._dedicated.reconcile, self._counting(_MCMS)
        self._informers = Informers(cluster.cache, stores=context.stores)
        self._grants_gc = GrantCollector(
            self._informers, stores=context.stores, access=context.access, identities=identities
        )

    async def close(self) -> None:
        """Close the connections to shared etcds."""
        for etcd in self._etcds.values():
            await etcd.close()

    def checks(self) -> dict[str, Check]:
        """Return the checks of /readyz, by name."""
        return {"caches": self._caches_problem, "shared-etcd": self._etcd_problem}

    async def work(self) -> None:
        """Run the tasks of the leader until cancelled."""
        context = self._context
        async with AsyncExitStack() as stack:
            if isinstance(self._runtime, ProcessRuntime):
                await stack.enter_async_context(self._runtime)
            stack.callback(self._runtime.subscribe(self._wake))
            # Connect only now: without workers, keys would pile up in the queues.
            connect(context.stores, queues=context.queues)
            wake_all(context.stores, queues=context.queues)
            # The lists are from after the election, so they contain the grants of the former leader.
            watch_grants(self._cache, stores=context.stores, queues=context.queues)
            self._metrics.observe(control_planes=context.stores.control_planes, queues=context.queues.by_name())
            for collector in collectors(context.stores, usage=self._data_stores.usage):
                self._metrics.registry.register(collector)
            work = {
                "events": context.events.run(),
                "orphans": ComponentCollector(context.client, runtime=self._runtime, mcms=self._mcms).run(),
                "sweeping": self._grants_gc.run(),
                "secrets": context.secrets.run(listed=self._grants_gc.synced),
                "data stores": self._data_stores.run(),
                "snapshots": self._snapshot_jobs.run(),
                "imports of snapshots": self._import_snapshots(),
                "restores": self._restore_jobs.run(),
                "migrations": self._copies.run(),
                **({"gateway's certificate": self._trust.run()} if self._trust is not None else {}),
                **({"shared etcd's credentials": self._keeper.run()} if self._keeper is not None else {}),
                **{f"{name} controller": self._control(name) for name in context.queues.by_name()},
            }
            async with asyncio.TaskGroup() as group:
                for name, task in work.items():
                    group.create_task(task, name=name)

    def _wake(self, component: str) -> None:
        """Enqueue the objects to which a changed component of the runtime belongs."""
        wake_by_component(component, stores=self._context.stores, queues=self._context.queues)
        self._dedicated.wake(component)

    async def _import_snapshots(self) -> None:
        # Wait for the caches: a snapshot that is missing in the cache would be imported again.
        await self._known.wait()
        if self._importer is not None:
            await self._importer.run()

    async def _control(self, name: str) -> None:
        # Wait for complete caches, because objects would seem to be missing otherwise. Only a list from after the
        # election contains the last writes of the former operator, for example which control plane has which
        # clusterPath.
        await self._grants_gc.synced.wait()
        await self._context.secrets.synced.wait()
        await self._runtime.synced()
        if self._trust is not None:
            await self._trust.known.wait()
        self._known.set()
        kind, reconcile, on_failure = self._reconcilers[name]
        controller = Controller(
            name,
            self._metrics.timed(name, reconcile=reconcile),
            queue=self._context.queues.by_name()[name],
            workers=self._settings.workers,
            waiting=self._settings.workers * _WAITING_FOR_EACH_WORKER,
            timeout_seconds=_RECONCILE_SECONDS,
            on_failure=on_failure,
            fields=lambda key: {"object": f"{kind}/{key[1]}"},
        )
        await controller.run()

    def _counting(self, controller: str) -> OnFailure:
        """Return the failure callback of a controller that reports in its own condition instead of Synced."""

        async def count(_key: Key, _error: BaseException) -> None:
            self._metrics.failed(controller)

        return count

    def _caches_problem(self) -> str | None:
        if self._known.is_set() or not self._leading():
            return self._informers.problem()
        trust = self._trust.problem() if self._trust is not None else None
        problem = self._context.secrets.problem() or self._informers.problem() or trust
        return problem or "the management cluster was not listed yet"

    def _etcd_problem(self) -> str | None:
        # Only the leader maintains the credentials of the etcd.
        return self._data_stores.problem() if self._leading() else None
