"""Starts and ends the parts of a management cluster in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kplane.api.names import FAKE_NODES_CONFIG_MAP
from kplane.binaries.programs import Binaries
from kplane.components.api_server import API_SERVER_PORTS, api_server_component, server_url, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.embedded import components, lock
from kplane.embedded.credentials import (
    ADMINISTRATOR_GROUPS,
    GATEWAY_USER,
    MCM_USER,
    OPERATOR_USER,
    SERVICE_ACCOUNT_GROUPS,
    Credentials,
    write_private,
)
from kplane.embedded.errors import EmbeddedError, LeftRunning, NotReadyInTime
from kplane.embedded.handle import READY_FILE, Handle
from kplane.embedded.manifests import install
from kplane.pki.authorities import TenantCertificates
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import Address, Component, Phase, ProcessRuntime, end_processes, find_processes

__all__ = ["ManagementCluster"]

_HOST: Final = "127.0.0.1"
_GATEWAY_DOMAIN: Final = "localhost"
"""Domain of the gateway. Its names need no resolver, because published kubeconfigs contain the gateway's address."""
_READY_SECONDS: Final = 180.0
_HOPELESS_RESTARTS: Final = 4
_LONG_LEASE: Final = ("--leader-elect-lease-seconds=60", "--leader-elect-renew-deadline-seconds=40")
"""Flags for a long Lease, because a busy machine renews late.

A next operator of the directory need not wait for its end.
"""
_TENANT_GRACE_SECONDS: Final = 3.0


class ManagementCluster:
    """Runs a management cluster of plain processes, as an async context manager.

    `directory` keeps data and credentials: a cluster that starts there again has both. `operators` adds
    controlplane-operator and mcm. Both need `manifests`: the CRDs and RBAC of kplane, and an etcd for control planes.
    Without `fsync`, which suits tests, a crash of the machine can lose data. `gateway` is the program Envoy, which then
    serves the control planes under a common address; it needs `operators`. `kwok` is the program of that name, which
    then plays the nodes that control planes request; it needs `operators`, too. `operator_arguments` are more flags of
    controlplane-operator.

    Exiting ends all processes, including processes of control planes, and raises `LeftRunning` if a process is left.
    Entering raises `DirectoryInUse`, `NotReadyInTime`, `workloads.WorkloadsError`, `provider.ProviderError` and
    `pki.PkiError`. Parts that start together raise them in an ExceptionGroup.
    """

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Binaries,
        operators: bool = True,
        manifests: bool = True,
        fsync: bool = True,
        gateway: Path | None = None,
        kwok: Path | None = None,
        operator_arguments: Sequence[str] = (),
    ) -> None:
        self._operator_arguments = tuple(operator_arguments)
        self._directory = directory.absolute()
        self._binaries = binaries
        self._operators = operators
        self._manifests = manifests
        self._fsync = fsync
        self._envoy = gateway
        self._kwok = kwok
        self._exit = contextlib.AsyncExitStack()
        self._seconds: dict[str, float] = {}
        self._handle: Handle | None = None
        self._client: Client | None = None
        self._operator: Component | None = None
        self._mcm: Component | None = None
        self.runtime = ProcessRuntime(self._directory / "runtime", programs=binaries.directories, host=_HOST)
        """Runs the parts under the names in `kplane.embedded.components`."""

    @property
    def handle(self) -> Handle:
        """Addresses and credentials of the cluster. Raises `EmbeddedError` before it is ready."""
        if self._handle is None:
            raise EmbeddedError(f"failed to use the management cluster in {self._directory}: it is not ready")
        return self._handle

    @property
    def client(self) -> Client:
        """Client with the administrator's rights. Raises `EmbeddedError` before the cluster is ready."""
        if self._client is None:
            raise EmbeddedError(f"failed to use the management cluster in {self._directory}: it is not ready")
        return self._client

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(lock.hold(self._directory))
            stack.push_async_callback(self._end_what_is_left)
            # Processes of control planes survive a killed run, and an operator would adopt them. Without operators, end
            # them.
            if not self._operators:
                await end_processes(self._directory, grace_seconds=_TENANT_GRACE_SECONDS)
            await stack.enter_async_context(self.runtime)
            stack.push_async_callback(self._stop)
            await self._start(stack)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        begun = time.monotonic()
        credentials = Credentials(self._directory / "credentials", host=_HOST)
        addresses = await self._reserve()
        certificates = credentials.certificates(hosts=serving_hosts(addresses[components.API_SERVER]))
        async with self._timed("etcd"), asyncio.TaskGroup() as tasks:
            tasks.create_task(self._start_etcd(credentials, certificates, addresses), name="start etcd")
            if self._manifests:
                tasks.create_task(self._start_tenants_etcd(credentials, addresses), name="start tenants' etcd")
        async with self._timed("kube-apiserver"):
            await self._start_api_server(credentials, certificates, addresses)
        handle = self._describe(credentials, addresses)
        config = ClusterConfig.load(handle.admin_kubeconfig)
        client = await stack.enter_async_context(Client(config, field_manager="embedded"))
        async with self._timed("manifests"), asyncio.TaskGroup() as tasks:
            if self._manifests:
                tasks.create_task(install(client, timeout_seconds=_READY_SECONDS), name="install CRDs and RBAC")
            tasks.create_task(self._start_controllers(credentials, addresses), name="start controllers")
        if self._operators:
            async with self._timed("operators"):
                await self._start_operators(handle, addresses)
                await self._start_gateway(credentials, handle, addresses)
            await self._start_fake_nodes(stack, client)
        self._seconds["total"] = round(time.monotonic() - begun, 3)
        self._handle, self._client = handle, client
        handle.save()

    async def _reserve(self) -> dict[str, Address]:
        ports = {
            components.ETCD: ETCD_PORTS,
            components.TENANTS_ETCD: ETCD_PORTS,
            components.API_SERVER: API_SERVER_PORTS,
            components.CONTROLLER_MANAGER: components.CONTROLLER_MANAGER_PORTS,
            components.OPERATOR: components.OPERATOR_PORTS,
            components.MCM: components.OPERATOR_PORTS,
            **({components.GATEWAY: components.GATEWAY_PORTS} if self._envoy is not None else {}),
        }
        return {name: await self.runtime.reserve(name, ports=names) for name, names in ports.items()}

    async def _start_etcd(
        self, credentials: Credentials, certificates: TenantCertificates, addresses: Mapping[str, Address]
    ) -> None:
        if certificates.etcd_server is None:
            raise EmbeddedError("failed to start etcd: it has no serving certificate")
        component = etcd_component(
            components.ETCD,
            address=addresses[components.ETCD],
            ca=credentials.authorities.etcd.certificate,
            server=certificates.etcd_server,
        )
        await self._run(components.bound(component, args=self._etcd_arguments))

    async def _start_tenants_etcd(self, credentials: Credentials, addresses: Mapping[str, Address]) -> None:
        address = addresses[components.TENANTS_ETCD]
        component = etcd_component(
            components.TENANTS_ETCD,
            address=address,
            ca=credentials.tenants_etcd_authority.certificate,
            server=credentials.tenants_etcd(),
        )
        await self._run(components.bound(component, args=self._etcd_arguments))
        # Imported here, because clusters without control planes also run without an installed gRPC.
        from kplane.data import Client as EtcdClient
        from kplane.data import Credentials as EtcdCredentials
        from kplane.data import DataError

        etcd_credentials = EtcdCredentials.in_directory(credentials.tenants_etcd_directory)
        async with EtcdClient(client_url(address), credentials=etcd_credentials) as client:
            try:
                await client.access.ensure_enabled()
            except DataError as error:
                raise EmbeddedError(
                    f"failed to turn on access control of {components.TENANTS_ETCD}: {error}"
                ) from error

    @property
    def _etcd_arguments(self) -> tuple[str, ...]:
        return () if self._fsync else ("--unsafe-no-fsync",)

    async def _start_api_server(
        self, credentials: Credentials, certificates: TenantCertificates, addresses: Mapping[str, Address]
    ) -> None:
        etcd = EtcdAccess(
            endpoints=(client_url(addresses[components.ETCD]),),
            ca=credentials.authorities.etcd.certificate,
            client=certificates.etcd_client,
        )
        component = api_server_component(
            components.API_SERVER,
            address=addresses[components.API_SERVER],
            authorities=credentials.authorities,
            certificates=certificates,
            etcd=etcd,
            etcd_prefix="/registry",
            etcd_shared=False,
        )
        await self._run(components.bound(component, env=components.MANAGEMENT))

    async def _start_controllers(self, credentials: Credentials, addresses: Mapping[str, Address]) -> None:
        server = server_url(addresses[components.API_SERVER])
        component = components.controller_manager(
            address=addresses[components.CONTROLLER_MANAGER],
            kubeconfig=credentials.kubeconfig(server, user="system:kube-controller-manager"),
            ca=credentials.authorities.serving.certificate,
            server=credentials.controller_manager(),
            service_account_key=credentials.authorities.service_account_key,
        )
        await self._run(component)

    async def _start_operators(self, handle: Handle, addresses: Mapping[str, Address]) -> None:
        programs = [f"--programs-dir={directory}" for directory in dict.fromkeys(handle.programs)]
        # Imported here, because clusters without operators also run without an installed pyrage.
        from kplane.embedded.snapshots import snapshot_arguments

        gateway = []
        if self._envoy is not None:
            gateway = [f"--gateway-url={handle.gateway_url}", f"--gateway-ca={handle.gateway_ca}"]
            gateway += [f"--gateway-domain={_GATEWAY_DOMAIN}"]
        self._operator = components.python(
            components.OPERATOR,
            module="kplane.controlplane_operator.main",
            args=(
                "--runtime=process",
                *_LONG_LEASE,
                f"--state-dir={handle.operator_directory}",
                *programs,
                f"--shared-etcd-endpoint={handle.tenants_etcd.endpoint}",
                f"--shared-etcd-credentials={handle.tenants_etcd_credentials}",
                *gateway,
                *snapshot_arguments(self._directory),
                *self._operator_arguments,
                f"--mcm-program={components.python_program(self._directory / 'programs', module='kplane.mcm.main')}",
            ),
            address=addresses[components.OPERATOR],
            kubeconfig=handle.operator_kubeconfig.read_bytes(),
        )
        self._mcm = components.python(
            components.MCM,
            module="kplane.mcm.main",
            args=(f"--state-dir={handle.mcm_directory}", "--report-status", *programs),
            address=addresses[components.MCM],
            kubeconfig=handle.mcm_kubeconfig.read_bytes(),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run(_described(self._operator)), name="start controlplane-operator")
            tasks.create_task(self._run(_described(self._mcm)), name="start mcm")

    async def _start_gateway(self, credentials: Credentials, handle: Handle, addresses: Mapping[str, Address]) -> None:
        if self._envoy is None or handle.gateway_ca is None:
            return
        address = addresses[components.GATEWAY]
        kubeconfig = credentials.kubeconfig(handle.server, user=GATEWAY_USER, groups=SERVICE_ACCOUNT_GROUPS)
        component = components.python(
            components.GATEWAY,
            module="kplane.gateway.main",
            args=(
                f"--state-dir={self._directory / 'gateway'}",
                f"--envoy={self._envoy}",
                f"--certificate-dir={handle.gateway_ca.parent}",
                f"--serve={address.host}:{address.ports['https']}",
            ),
            address=address,
            kubeconfig=kubeconfig,
        )
        await self._run(component)

    async def _start_fake_nodes(self, stack: contextlib.AsyncExitStack, client: Client) -> None:
        """Start the fake nodes, and publish in a ConfigMap that they are supported.

        Without kwok, delete the ConfigMap.
        """
        marker, namespace = FAKE_NODES_CONFIG_MAP, "kube-public"
        if self._kwok is None:
            with contextlib.suppress(NotFound):
                await client.delete(CONFIG_MAPS, marker, namespace=namespace)
            return
        # Imported here, because most clusters do not use fake nodes.
        from kplane.embedded.fake_nodes import FakeNodes

        directory = self._directory / "fake-nodes"
        await stack.enter_async_context(FakeNodes(client.config, directory=directory, program=self._kwok))
        await client.apply(CONFIG_MAPS, {"metadata": {"name": marker, "namespace": namespace}}, force=True)

    def _describe(self, credentials: Credentials, addresses: Mapping[str, Address]) -> Handle:
        server = server_url(addresses[components.API_SERVER])
        identities = {
            "admin": ("kubernetes-admin", ADMINISTRATOR_GROUPS),
            "operator": (OPERATOR_USER, SERVICE_ACCOUNT_GROUPS),
            "mcm": (MCM_USER, SERVICE_ACCOUNT_GROUPS),
        }
        kubeconfigs = {name: credentials.directory / f"{name}.kubeconfig" for name in identities}
        for name, (user, groups) in identities.items():
            write_private(kubeconfigs[name], content=credentials.kubeconfig(server, user=user, groups=groups))
        operator, mcm = (_url(addresses[name]) for name in (components.OPERATOR, components.MCM))
        return Handle(
            directory=self._directory,
            pid=os.getpid(),
            server=server,
            admin_kubeconfig=kubeconfigs["admin"],
            operator_kubeconfig=kubeconfigs["operator"],
            mcm_kubeconfig=kubeconfigs["mcm"],
            programs=self._binaries.directories,
            kubectl_program=self._binaries.path("kubectl"),
            tenants_etcd_endpoint=client_url(addresses[components.TENANTS_ETCD]) if self._manifests else None,
            tenants_etcd_credentials=credentials.tenants_etcd_directory,
            operator_directory=self._directory / "operator",
            mcm_directory=self._directory / "mcm",
            operator_url=operator if self._operators else None,
            mcm_url=mcm if self._operators else None,
            seconds=self._seconds,
            gateway_url=server_url(addresses[components.GATEWAY]) if self._envoy is not None else None,
            gateway_ca=credentials.gateway() / "ca.crt" if self._envoy is not None else None,
            fake_nodes=self._kwok is not None,
        )

    async def _run(self, component: Component) -> None:
        """Start a component, and wait until it is ready."""
        changed = asyncio.Event()
        unsubscribe = self.runtime.subscribe(lambda name: changed.set() if name == component.name else None)
        try:
            await self.runtime.apply(component)
            async with asyncio.timeout(_READY_SECONDS):
                while self.runtime.state(component.name).phase is not Phase.READY:
                    if self.runtime.state(component.name).restarts >= _HOPELESS_RESTARTS:
                        raise self._not_ready(component.name, since=f"{_HOPELESS_RESTARTS} restarts")
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise self._not_ready(component.name, since=f"{_READY_SECONDS:.0f} s") from None
        finally:
            unsubscribe()

    def _not_ready(self, name: str, *, since: str) -> NotReadyInTime:
        state = self.runtime.state(name)
        return NotReadyInTime(
            f"failed to start {name}: {state.phase} after {since}: {state.message}; see {self.runtime.log_path(name)}"
        )

    async def _stop(self) -> None:
        """End all parts, clients before servers."""
        self._handle = None
        (self._directory / READY_FILE).unlink(missing_ok=True)
        await self._stop_all(components.GATEWAY, components.OPERATOR, components.MCM)
        # Envoy outlives the gateway, which controls it.
        await end_processes(self._directory / "gateway", grace_seconds=_TENANT_GRACE_SECONDS)
        await end_processes(self._directory / "mcm", grace_seconds=_TENANT_GRACE_SECONDS)
        await end_processes(self._directory / "operator", grace_seconds=_TENANT_GRACE_SECONDS)
        await self._stop_all(components.CONTROLLER_MANAGER)
        await self._stop_all(components.API_SERVER)
        await self._stop_all(components.ETCD, components.TENANTS_ETCD)

    async def _stop_all(self, *names: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(self.runtime.stop(name), name=f"stop {name}")

    async def _end_what_is_left(self) -> None:
        if left := find_processes(self._directory):
            await end_processes(self._directory, grace_seconds=_TENANT_GRACE_SECONDS)
            raise LeftRunning(f"failed to stop {self._directory} in order: processes {left} had to be killed")

    @contextlib.asynccontextmanager
    async def _timed(self, part: str) -> AsyncIterator[None]:
        begun = time.monotonic()
        yield
        self._seconds[part] = round(time.monotonic() - begun, 3)


def _url(address: Address) -> str:
    return f"http://{address.host}:{address.ports['http']}"


def _described(component: Component | None) -> Component:
    if component is None:
        raise EmbeddedError("failed to find the operators: the management cluster was started without them")
    return component
