"""Reconcilers of the operator, and the parts that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

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
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.hibernation.room import Room
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.registrations.reconciler import ControlPlaneRegistrationReconciler
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.keeper import CredentialsKeeper, service_endpoint
from kplane.controlplane_operator.snapshots.importer import SnapshotImporter
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.reconciler import ControlPlaneSnapshotReconciler
from kplane.controlplane_operator.snapshots.restoring import SnapshotRestorer
from kplane.controlplane_operator.snapshots.scheduler import SnapshotScheduler
from kplane.controlplane_operator.snapshots.source import Sources
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import (
    Cache,
    Client,
    ClusterConfig,
)
from kplane.workloads import ProcessRuntime
from kplane.workloads.cpus import usable_cpus
from kplane.workloads.pods import PodRuntime

__all__ = ["Reconcilers"]


class Reconcilers:
    """Creates the reconcilers of all kinds, connected to each other."""

    def __init__(
        self,
        settings: OperatorConfig,
        *,
        context: OperatorContext,
        cache: Cache,
        default_credentials: ClusterConfig | None,
        snapshots: SnapshotStorage | None,
    ) -> None:
        client, triggers = context.client, context.triggers
        runtime = _runtime(client, settings)
        self.runtime: Final = runtime
        first, self._keeper = _shared_etcd(client, settings)
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

        self.data_stores: Final = DataStores(self._etcds, make=make)
        clusters = ClusterClaims(context.stores)
        provisioners = Provisioners(
            data_stores=self.data_stores,
            dedicated=DedicatedProvisioner(
                context,
                runtime=runtime,
                quota_bytes=settings.etcd_quota_bytes,
                restorer=restorer,
                proxy=settings.egress_proxy,
            ),
            adopted=AdoptedProvisioner(context, default_credentials=default_credentials, clusters=clusters),
        )
        self.identities: Final = McmIdentities(client, cache)
        self.mcms: Final = DedicatedMcms(runtime, identities=self.identities)
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
        switch = EndpointSwitch(context.stores, triggers=triggers)
        replicas = settings.pods.replicas if settings.pods is not None else 1
        use = HostNameUse(context, replicas=replicas)
        self.probes: Final = CredentialProbes(context, use=use)
        served = ServedRevisions(context, homes=provisioners.home)
        self.control_planes: Final = ControlPlaneReconciler(
            context,
            probes=self.probes,
            provisioners=provisioners,
            namespaces=namespaces,
            removal=Removal(
                context,
                namespaces=namespaces,
                provisioner=provisioners.used,
                claims=claims,
                mcms=self.mcms,
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
        self.classes: Final = ControlPlaneClassReconciler(context, bundles=bundles)
        self.endpoints: Final = ControlPlaneEndpointReconciler(context, default_credentials=default_credentials)
        self.registrations: Final = ControlPlaneRegistrationReconciler(
            context, switch=switch, mcms=self.mcms, no_dedicated=settings.why_no_mcm
        )
        self.snapshots: Final = ControlPlaneSnapshotReconciler(
            context, sources=sources, jobs=self._snapshot_jobs, storage=snapshots
        )
        self.addons: Final = ControlPlaneAddonsReconciler(context, bundles=bundles)
        self.dedicated_mcms: Final = DedicatedMcmReconciler(
            context,
            runtime=runtime,
            mcms=self.mcms,
            identities=self.identities,
            program=settings.dedicated_mcm,
            config=settings.management_config() if settings.pods is None else None,
        )
        self.schedules: Final = SnapshotScheduler(context)

    async def close(self) -> None:
        """Close the connections to shared etcds."""
        for etcd in self._etcds.values():
            await etcd.close()

    def jobs(self, *, known: asyncio.Event) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the jobs of the reconcilers by name, each for a task. `known` is set once all caches are complete."""
        jobs = {
            "data stores": self.data_stores.run(),
            "snapshots": self._snapshot_jobs.run(),
            "restores": self._restore_jobs.run(),
            "migrations": self._copies.run(),
        }
        if self._importer is not None:
            jobs["imports of snapshots"] = _import_snapshots(self._importer, known)
        if self._keeper is not None:
            jobs["shared etcd's credentials"] = self._keeper.run()
        return jobs


async def _import_snapshots(importer: SnapshotImporter, known: asyncio.Event) -> None:
    # A snapshot that is missing in the cache would be imported again.
    await known.wait()
    await importer.run()


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
