"""The management cluster: what runs in it, in which order it starts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from embedded import components, lock
from embedded.credentials import MCM_USER, OPERATOR_USER, Credentials, kubeconfig
from embedded.errors import EmbeddedError, LeftRunning, NotReadyInTime
from embedded.etcdctl import Etcdctl
from embedded.handle import READY_FILE, Handle
from embedded.manifests import install
from embedded.tenants_etcd import enable_access_control
from provider import Client
from tools.binaries import Binaries
from workloads import Component, Phase, ProcessRuntime, end_processes, find_processes

__all__ = ["ManagementCluster"]

_HOST: Final = "127.0.0.1"
_READY_SECONDS: Final = 60.0
_TENANT_GRACE_SECONDS: Final = 3.0


class ManagementCluster:
    """A management cluster of plain processes, as an async context manager.

    Its data and credentials are in `directory`: over the same directory it comes back as it was. `operators` adds
    controlplane-operator and mcm. Without `fsync` a crash of the machine loses data: for tests.
    On exit everything is ended, the tenants' components too, and that is verified (`LeftRunning`).
    Entering raises `DirectoryInUse`, `NotReadyInTime`, `workloads.RuntimeFailure`, `provider.ProviderError`.
    """

    def __init__(self, directory: Path, *, binaries: Binaries, operators: bool = True, fsync: bool = True) -> None:
        self._directory = directory.absolute()
        self._binaries = binaries
        self._operators = operators
        self._fsync = fsync
        self._exit = contextlib.AsyncExitStack()
        self._seconds: dict[str, float] = {}
        self._handle: Handle | None = None
        self._client: Client | None = None
        self._operator: Component | None = None
        self._mcm: Component | None = None
        self.runtime = ProcessRuntime(self._directory / "runtime", programs=binaries.directories, host=_HOST)
        """Runs the parts; their names are constants of `embedded.components`."""

    @property
    def handle(self) -> Handle:
        """How to reach the cluster. Raises `EmbeddedError` before it is ready."""
        if self._handle is None:
            raise EmbeddedError(f"The management cluster over {self._directory} is not ready.")
        return self._handle

    @property
    def client(self) -> Client:
        """Client with the administrator's rights. Raises `EmbeddedError` before the cluster is ready."""
        if self._client is None:
            raise EmbeddedError(f"The management cluster over {self._directory} is not ready.")
        return self._client

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(lock.hold(self._directory))
            stack.push_async_callback(self._end_what_is_left)
            # Where an earlier run was killed, its tenants live on for an operator to adopt. Without one, nobody would.
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

    async def start_operator(self) -> None:
        """Start controlplane-operator again after `stop_operator`, and wait until it is ready."""
        await self._run(_described(self._operator))

    async def stop_operator(self) -> None:
        """End controlplane-operator; what it runs for tenants goes on."""
        await self.runtime.stop(components.OPERATOR)

    async def start_mcm(self) -> None:
        """Start mcm again after `stop_mcm`, and wait until it is ready."""
        await self._run(_described(self._mcm))

    async def stop_mcm(self) -> None:
        """End mcm, and with it all instances."""
        await self.runtime.stop(components.MCM)

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        begun = time.monotonic()
        async with self._timed("credentials"):
            credentials = Credentials(self._directory / "credentials", host=_HOST)
        async with self._timed("etcd"), asyncio.TaskGroup() as tasks:
            management = tasks.create_task(self._start_etcd(credentials), name="start etcd")
            tenants = tasks.create_task(self._start_tenants_etcd(credentials), name="start tenants' etcd")
        async with self._timed("kube-apiserver"):
            server = await self._start_api_server(credentials, etcd_url=management.result())
        administrator = credentials.administrator(server)
        client = await stack.enter_async_context(Client(administrator, field_manager="embedded"))
        async with self._timed("manifests"), asyncio.TaskGroup() as tasks:
            tasks.create_task(install(client, timeout_seconds=_READY_SECONDS), name="install CRDs and RBAC")
            tasks.create_task(self._start_controllers(credentials, server=server), name="start controllers")
        handle = Handle(
            directory=self._directory,
            pid=os.getpid(),
            server=server,
            admin_kubeconfig=credentials.write_kubeconfig("admin.kubeconfig", config=administrator),
            operator_kubeconfig=credentials.write_kubeconfig(
                "operator.kubeconfig", config=credentials.service_account(server, user=OPERATOR_USER)
            ),
            mcm_kubeconfig=credentials.write_kubeconfig(
                "mcm.kubeconfig", config=credentials.service_account(server, user=MCM_USER)
            ),
            programs=self._binaries.directories,
            kubectl_program=self._binaries.path("kubectl"),
            tenants_etcd=tenants.result(),
            tenants_etcd_credentials=credentials.tenants_etcd,
            operator_directory=self._directory / "operator",
            mcm_directory=self._directory / "mcm",
            operator_url=await self._url(components.OPERATOR),
            mcm_url=await self._url(components.MCM),
            seconds=self._seconds,
        )
        if self._operators:
            async with self._timed("operators"):
                await self._start_operators(handle)
        self._seconds["total"] = round(time.monotonic() - begun, 3)
        self._handle, self._client = handle, client
        handle.save()

    async def _start_etcd(self, credentials: Credentials) -> str:
        ports = dict((await self.runtime.reserve(components.ETCD, ports=components.ETCD_PORTS)).ports)
        await self._run(
            components.etcd(
                components.ETCD,
                host=_HOST,
                ports=ports,
                ca=credentials.etcd_ca,
                server=credentials.etcd_server(),
                fsync=self._fsync,
            )
        )
        return f"https://{_HOST}:{ports['https']}"

    async def _start_tenants_etcd(self, credentials: Credentials) -> Etcdctl:
        ports = dict((await self.runtime.reserve(components.TENANTS_ETCD, ports=components.ETCD_PORTS)).ports)
        await self._run(
            components.etcd(
                components.TENANTS_ETCD,
                host=_HOST,
                ports=ports,
                ca=credentials.tenants_etcd_ca,
                server=credentials.tenants_etcd_server(),
                fsync=self._fsync,
            )
        )
        etcdctl = Etcdctl(
            program=self._binaries.path("etcdctl"),
            endpoint=f"https://{_HOST}:{ports['https']}",
            ca=credentials.tenants_etcd / "ca.crt",
            certificate=credentials.tenants_etcd / "client.crt",
            key=credentials.tenants_etcd / "client.key",
        )
        await enable_access_control(etcdctl)
        return etcdctl

    async def _start_api_server(self, credentials: Credentials, *, etcd_url: str) -> str:
        port = (await self.runtime.reserve(components.API_SERVER, ports=["https"])).ports["https"]
        await self._run(
            components.api_server(
                host=_HOST,
                port=port,
                etcd_url=etcd_url,
                etcd_ca=credentials.etcd_ca,
                etcd_client=credentials.etcd_client(),
                ca=credentials.ca,
                server=credentials.api_server(),
                front_proxy_ca=credentials.front_proxy_ca,
                front_proxy=credentials.front_proxy(),
                service_account_key=credentials.service_account_key,
            )
        )
        return f"https://{_HOST}:{port}"

    async def _start_controllers(self, credentials: Credentials, *, server: str) -> None:
        name = components.CONTROLLER_MANAGER
        address = await self.runtime.reserve(name, ports=components.CONTROLLER_MANAGER_PORTS)
        await self._run(
            components.controller_manager(
                host=_HOST,
                ports=dict(address.ports),
                kubeconfig=kubeconfig(credentials.controllers(server)),
                ca=credentials.ca,
                server=credentials.controller_manager(),
                service_account_key=credentials.service_account_key,
            )
        )

    async def _url(self, name: str) -> str | None:
        if not self._operators:
            return None
        return f"http://{_HOST}:{(await self.runtime.reserve(name, ports=['http'])).ports['http']}"

    async def _start_operators(self, handle: Handle) -> None:
        programs = [f"--programs-dir={directory}" for directory in dict.fromkeys(handle.programs)]
        operator_port = (await self.runtime.reserve(components.OPERATOR, ports=["http"])).ports["http"]
        mcm_port = (await self.runtime.reserve(components.MCM, ports=["http"])).ports["http"]
        self._operator = components.python(
            components.OPERATOR,
            module="controlplane_operator.main",
            args=(
                "--runtime=process",
                f"--state-dir={handle.operator_directory}",
                *programs,
                f"--shared-etcd-endpoint={handle.tenants_etcd.endpoint}",
                f"--shared-etcd-credentials={handle.tenants_etcd_credentials}",
            ),
            host=_HOST,
            port=operator_port,
            kubeconfig=handle.operator_kubeconfig.read_bytes(),
        )
        self._mcm = components.python(
            components.MCM,
            module="mcm.main",
            args=(f"--state-dir={handle.mcm_directory}", *programs),
            host=_HOST,
            port=mcm_port,
            kubeconfig=handle.mcm_kubeconfig.read_bytes(),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.start_operator(), name="start controlplane-operator")
            tasks.create_task(self.start_mcm(), name="start mcm")

    async def _run(self, component: Component) -> None:
        """Have a component run, and wait until it is ready."""
        changed = asyncio.Event()
        unsubscribe = self.runtime.subscribe(lambda name: changed.set() if name == component.name else None)
        try:
            await self.runtime.apply(component)
            async with asyncio.timeout(_READY_SECONDS):
                while self.runtime.state(component.name).phase is not Phase.READY:
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            state = self.runtime.state(component.name)
            raise NotReadyInTime(
                f"{component.name} was {state.phase} after {_READY_SECONDS:.0f} s: {state.message} "
                f"Its log is {self.runtime.log_path(component.name)}."
            ) from None
        finally:
            unsubscribe()

    async def _stop(self) -> None:
        """End everything, those that use others first."""
        self._handle = None
        (self._directory / READY_FILE).unlink(missing_ok=True)
        await self._stop_all(components.OPERATOR, components.MCM)
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
            raise LeftRunning(f"Processes {left} of {self._directory} were left running; they were ended now.")

    @contextlib.asynccontextmanager
    async def _timed(self, part: str) -> AsyncIterator[None]:
        begun = time.monotonic()
        yield
        self._seconds[part] = round(time.monotonic() - begun, 3)


def _described(component: Component | None) -> Component:
    if component is None:
        raise EmbeddedError("This management cluster was started without operators.")
    return component
