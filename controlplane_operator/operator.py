"""The running operator: everything built, connected, and ended in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final

from controlplane_operator.access import Access
from controlplane_operator.claims import Claims
from controlplane_operator.components import place
from controlplane_operator.control_plane import ControlPlaneReconciler, Provisioners
from controlplane_operator.control_plane_class import ControlPlaneClassReconciler
from controlplane_operator.control_plane_endpoint import ControlPlaneEndpointReconciler
from controlplane_operator.control_plane_registration import ControlPlaneRegistrationReconciler
from controlplane_operator.dedicated import DedicatedProvisioner
from controlplane_operator.events import Events
from controlplane_operator.external import ExternalProvisioner
from controlplane_operator.fanout import ALLOWED_SECRETS, LABEL_SELECTORS, Queues, Stores, connect, wake_by_component
from controlplane_operator.health import Check, serve_health
from controlplane_operator.management import Management
from controlplane_operator.metrics import Metrics
from controlplane_operator.namespaces import ManagementNamespaces
from controlplane_operator.orphans import Orphans
from controlplane_operator.publication import Publication
from controlplane_operator.relisting import Relisting
from controlplane_operator.removal import Removal
from controlplane_operator.settings import EtcdAt, EtcdBehind, Settings
from controlplane_operator.shared_etcd import CredentialsKeeper, SharedEtcd, service_endpoint
from controlplane_operator.status import StatusWriter
from controlplane_operator.virtual import VirtualProvisioner
from controlplane_operator.watching import Watching
from provider import SECRETS, Client, ClusterConfig, Controller, Reflector
from workloads import ProcessRuntime, Runtime
from workloads.pods import PodRuntime

__all__ = ["run_operator"]

_log: Final = logging.getLogger(__name__)

_CALL_SECONDS: Final = 10.0
_RECONCILE_SECONDS: Final = 90.0


async def run_operator(settings: Settings, *, stop: asyncio.Event) -> None:
    """Run until `stop` is set; components of control planes go on without us.

    Raises KubeconfigError, RuntimeFailure or OSError where it cannot start.
    """
    config = settings.management_config()
    default = ClusterConfig.load(settings.cluster_kubeconfig) if settings.cluster_kubeconfig is not None else None
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config, timeout_seconds=_CALL_SECONDS))
        runtime = await stack.enter_async_context(_runtime(client, settings))
        management = _management(client, settings)
        assembly = _Assembly(settings, management=management, runtime=runtime, default_credentials=default)
        stack.callback(runtime.subscribe(assembly.wake))
        await stack.enter_async_context(
            serve_health(
                settings.listen_host,
                port=settings.listen_port,
                checks=assembly.checks(),
                metrics=assembly.metrics.registry,
            )
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work, name=name) for name, work in assembly.work().items()]
            _log.info("running", extra={"listen": f"{settings.listen_host}:{settings.listen_port}"})
            await stop.wait()
            _log.info("stopping")
            for task in tasks:
                task.cancel()


def _runtime(client: Client, settings: Settings) -> AbstractAsyncContextManager[Runtime]:
    if settings.pods is not None:
        return PodRuntime(client, place=place, settings=settings.pods)
    return ProcessRuntime(settings.state_directory, programs=settings.program_directories)


def _shared_etcd(client: Client, settings: Settings) -> tuple[SharedEtcd | None, CredentialsKeeper | None]:
    """Return the shared etcd, and who keeps its credentials where that is our task."""
    programs = settings.program_directories
    match settings.shared_etcd:
        case None:
            return None, None
        case EtcdAt(endpoint, credentials):
            return SharedEtcd.from_directory(credentials, endpoint=endpoint, programs=programs), None
        case EtcdBehind(service, namespace):
            endpoint = service_endpoint(service, namespace=namespace)
            etcd = SharedEtcd(endpoint, programs=programs, namespace=namespace)
            keeper = CredentialsKeeper(
                client,
                etcd=etcd,
                service=service,
                namespace=namespace,
                directory=settings.state_directory / ".shared-etcd",
            )
            return etcd, keeper


def _management(client: Client, settings: Settings) -> Management:
    events = Events(client)
    access = Access(
        client,
        service_account=settings.mcm_service_account,
        service_account_namespace=settings.mcm_namespace,
    )
    return Management(
        client=client,
        stores=Stores(),
        queues=Queues(),
        status=StatusWriter(client, events=events),
        events=events,
        access=access,
    )


class _Assembly:
    """The parts of the operator, each connected to the others."""

    def __init__(
        self,
        settings: Settings,
        *,
        management: Management,
        runtime: Runtime,
        default_credentials: ClusterConfig | None,
    ) -> None:
        self.metrics = Metrics()
        self._known = asyncio.Event()
        self._settings = settings
        self._management = management
        self._runtime = runtime
        shared_etcd, self._keeper = _shared_etcd(management.client, settings)
        self._virtual = VirtualProvisioner(management, runtime=runtime, shared_etcd=shared_etcd)
        provisioners = Provisioners(
            virtual=self._virtual,
            dedicated=DedicatedProvisioner(management, runtime=runtime, quota_bytes=settings.etcd_quota_bytes),
            external=ExternalProvisioner(management, default_credentials=default_credentials),
        )
        namespaces = ManagementNamespaces(management)
        claims = Claims(management.stores, realm=provisioners.realm)
        self._control_planes = ControlPlaneReconciler(
            management,
            provisioners=provisioners,
            namespaces=namespaces,
            publication=Publication(management),
            removal=Removal(management, namespaces=namespaces, provisioner=provisioners.used, claims=claims),
            claims=claims,
        )
        self._classes = ControlPlaneClassReconciler(management)
        self._endpoints = ControlPlaneEndpointReconciler(management, default_credentials=default_credentials)
        self._registrations = ControlPlaneRegistrationReconciler(management)
        self._relisting = Relisting(
            management.client, stores=management.stores, label_selectors=LABEL_SELECTORS, access=management.access
        )
        self._allowed = Reflector(management.client, SECRETS, label_selector=ALLOWED_SECRETS)
        connect(management.stores, queues=management.queues)
        self.metrics.observe(control_planes=management.stores.control_planes, queues=management.queues.by_name())

    def wake(self, component: str) -> None:
        """A component of the runtime changed: whoever it belongs to is looked at."""
        wake_by_component(component, stores=self._management.stores, queues=self._management.queues)

    def checks(self) -> dict[str, Check]:
        """Return what /readyz looks at."""
        return {"caches": self._caches_problem, "shared-etcd": self._virtual.problem}

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return everything that runs, by name."""
        watching = Watching(
            self._settings.management_config,
            stores=self._management.stores.watched(),
            label_selectors=LABEL_SELECTORS,
        )
        return {
            "events": self._management.events.run(),
            "allowed secrets": self._allowed.run(self._allowed_secret_seen),
            "orphans": Orphans(self._management.client, runtime=self._runtime).run(),
            "relisting": self._relisting.run(),
            "watching": watching.run(),
            **({"shared etcd's credentials": self._keeper.run()} if self._keeper is not None else {}),
            **{f"{name} controller": self._control(name) for name in self._management.queues.by_name()},
        }

    async def _control(self, name: str) -> None:
        # Reconciling from half-filled stores would take objects for missing.
        await self._relisting.synced.wait()
        await self._allowed.synced.wait()
        await self._runtime.synced()
        self._known.set()
        reconcile = {
            "controlplane": self._control_planes.reconcile,
            "controlplaneclass": self._classes.reconcile,
            "controlplaneendpoint": self._endpoints.reconcile,
            "controlplaneregistration": self._registrations.reconcile,
        }[name]
        controller = Controller(
            name,
            self.metrics.timed(name, reconcile=reconcile),
            queue=self._management.queues.by_name()[name],
            workers=self._settings.workers,
            timeout_seconds=_RECONCILE_SECONDS,
        )
        await controller.run()

    def _allowed_secret_seen(self, event: str, secret: dict[str, Any]) -> None:
        store = self._management.stores.allowed_secrets
        if event == "DELETED":
            store.remove(secret)
        else:
            store.apply(secret)

    async def _caches_problem(self) -> str | None:
        return None if self._known.is_set() else "the management cluster was not listed yet"
