"""Real control planes for instances to work on, and mcm as a process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import datetime as dt
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane_operator.credentials import (
    CONTROLLERS_USER,
    KeyPair,
    TenantAuthorities,
    TenantCertificates,
    create_authority,
    issue_client,
    issue_serving,
    render_kubeconfig,
)
from controlplane_operator.provisioning import (
    API_SERVER_PORTS,
    ETCD_PORTS,
    EtcdAccess,
    api_server_component,
    client_url,
    etcd_component,
    server_url,
    serving_hosts,
)
from embedded.credentials import MCM_USER
from provider import NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS, Client, ClusterConfig, NotFound
from provider.providers.registration import REGISTRATIONS
from tools.binaries import Binaries
from workloads import Component, Lifetime, Pace, Phase, ProcessRuntime, find_processes

_HOST = "127.0.0.1"
_AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"""


@dataclass(frozen=True)
class Tenant:
    """A control plane without controllers: an API server with its own authorities, and nothing that acts on objects."""

    server: str
    authorities: TenantAuthorities
    directory: Path
    """Of the component, by which its process is found."""

    @property
    def audit(self) -> Path:
        """Where its API server writes down who changed what."""
        return self.directory.parent / f"audit-{self.directory.name}.log"

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig.from_kubeconfig(self.kubeconfig(user="admin", groups=("system:masters",)))

    def kubeconfig(self, *, user: str = CONTROLLERS_USER, groups: tuple[str, ...] = ()) -> bytes:
        """A new certificate each time."""
        client = issue_client(self.authorities.client, user=user, groups=groups)
        return render_kubeconfig(server=self.server, ca=self.authorities.serving.certificate, user=user, client=client)

    def controllers_secret(self, *, user: str = CONTROLLERS_USER) -> dict[str, bytes]:
        return {
            "kubeconfig": self.kubeconfig(user=user, groups=("system:masters",)),
            "ca.crt": self.authorities.serving.certificate,
            "sa.key": self.authorities.service_account_key,
            "signing-ca.crt": self.authorities.client.certificate,
            "signing-ca.key": self.authorities.client.key,
        }


async def _run_until_ready(runtime: ProcessRuntime, component: Component) -> None:
    changed = asyncio.Event()
    unsubscribe = runtime.subscribe(lambda _: changed.set())
    await runtime.apply(component)
    async with asyncio.timeout(60.0):
        while runtime.state(component.name).phase is not Phase.READY:
            await changed.wait()
            changed.clear()
    unsubscribe()


async def _run_tenants(directory: Path, *, binaries: Binaries, names: tuple[str, ...]) -> Any:
    etcd_authority = create_authority("etcd")
    async with ProcessRuntime(directory, programs=binaries.directories, host=_HOST) as runtime:
        address = await runtime.reserve("etcd", ports=ETCD_PORTS)
        server = issue_serving(etcd_authority, common_name="etcd", hosts=(_HOST,), client=True)
        etcd = etcd_component("etcd", address=address, ca=etcd_authority.certificate, server=server)
        await _run_until_ready(runtime, _bound(etcd, "--unsafe-no-fsync"))
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(
                    _run_tenant(runtime, directory / name, etcd=client_url(address), etcd_ca=etcd_authority)
                )
                for name in names
            }
        yield {name: task.result() for name, task in tasks.items()}
        for name in (*names, "etcd"):
            await runtime.stop(name)


async def _run_tenant(runtime: ProcessRuntime, directory: Path, *, etcd: str, etcd_ca: KeyPair) -> Tenant:
    name = directory.name
    authorities = TenantAuthorities.create(name)
    address = await runtime.reserve(name, ports=API_SERVER_PORTS)
    certificates = TenantCertificates.renewed(
        None,
        authorities=authorities,
        hosts=serving_hosts(address),
        etcd_authority=etcd_ca,
        etcd_user=name,
        controllers_user=CONTROLLERS_USER,
        etcd_hosts=(_HOST,),
        now=dt.datetime.now(dt.UTC),
    )
    component = api_server_component(
        name,
        address=address,
        authorities=authorities,
        certificates=certificates,
        etcd=EtcdAccess(endpoints=(etcd,), ca=etcd_ca.certificate, client=certificates.etcd_client),
        etcd_prefix=f"/clusters/{name}",
        etcd_shared=True,
    )
    tenant = Tenant(server=server_url(address), authorities=authorities, directory=directory)
    policy = tenant.audit.with_suffix(".yaml")
    policy.write_text(_AUDIT_POLICY)
    component = _bound(component, f"--audit-policy-file={policy}", f"--audit-log-path={tenant.audit}")
    await _run_until_ready(runtime, component)
    return tenant


def _bound(component: Component, *args: str) -> Component:
    return dataclasses.replace(component, args=(*component.args, *args), lifetime=Lifetime.BOUND)


@pytest.fixture(scope="session")
def tenants(binaries: Binaries) -> Iterator[dict[str, Tenant]]:
    """Two control planes, `one` and `two`, on one etcd. They run in a thread's loop, so that any test can use them."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    ready, stop = threading.Event(), threading.Event()
    result: dict[str, Any] = {}

    async def run() -> None:
        try:
            async for found in _run_tenants(directory, binaries=binaries, names=("one", "two")):
                result["tenants"] = found
                ready.set()
                await asyncio.to_thread(stop.wait)
        except BaseException as error:
            result["error"] = error
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="tenants")
    thread.start()
    try:
        ready.wait()
        if "error" in result:
            raise result["error"]
        yield result["tenants"]
    finally:
        stop.set()
        thread.join()
        shutil.rmtree(directory, ignore_errors=True)


class Gate:
    """A way to a server, with an address of its own. While it is shut, the server is away for those who come by it."""

    def __init__(self, server: str, *, inside: ssl.SSLContext | None) -> None:
        """TLS to the server is that of who comes, or else by `inside`."""
        host, _, port = server.removeprefix("https://").rpartition(":")
        self._target = host, int(port)
        self._inside = inside
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.shut = False
        self.flowing = asyncio.Event()
        """Cleared: connections are there, and nothing comes through until it is set again."""
        self.flowing.set()

    @property
    def connections(self) -> int:
        """How many lead through it now."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        with contextlib.suppress(OSError):  # where the server does not take it, this end is closed as well
            there_reader, there_writer = await asyncio.open_connection(*self._target, ssl=self._inside)
            ends.add(there_writer)
            if not self.shut:
                self._writers |= ends
                await asyncio.gather(self._forward(reader, there_writer), self._forward(there_reader, writer))
        self._writers -= ends
        for end in ends:
            end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # cut
            while data := await reader.read(65536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
def gate_to() -> Callable[..., contextlib.AbstractAsyncContextManager[Gate]]:
    """`async with gate_to(server) as gate`: a way to it that can be cut and shut. TLS ends at `front`, if given."""

    @contextlib.asynccontextmanager
    async def opened(server: str, *, front: Any = None) -> AsyncIterator[Gate]:
        gate = Gate(server, inside=front and front.inside)
        listening = await asyncio.start_server(gate.serve, _HOST, 0, ssl=front and front.outside)
        gate.url = f"https://{_HOST}:{listening.sockets[0].getsockname()[1]}"
        try:
            yield gate
        finally:
            listening.close()
            gate.cut()

    return opened


class Mcm:
    """mcm as a process of its own, with everything that one may look at from outside."""

    def __init__(self, directory: Path, *, kubeconfig: Path, programs: tuple[Path, ...]) -> None:
        self.state = directory / "state"
        self.log = directory / "mcm.log"
        self.output = directory / "mcm.out"
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            self.url = f"http://{_HOST}:{probe.getsockname()[1]}"
        self._command = [
            *(sys.executable, "-m", "mcm.main", f"--kubeconfig={kubeconfig}", f"--state-dir={self.state}"),
            *(f"--programs-dir={path}" for path in programs),
            f"--listen={self.url.removeprefix('http://')}",
            "--report-status",
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        with self.log.open("ab") as log, self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )

    def end(self, number: int = signal.SIGTERM, *, timeout: float = 30.0) -> int:
        """Signal it, wait for its end and tell its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def clusters(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/clusters")[1])["clusters"]
        return found

    def instances(self) -> list[int]:
        """Processes that carry the marker of this mcm's runtime, told by the system."""
        return find_processes(self.state)

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.state.iterdir() if path.is_dir())


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    """Runs programs that a test writes into its directory, and is quick to start them again."""
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=Pace(restart_base=0.05)) as found:
        yield found


@pytest.fixture
def kubeconfig() -> str:
    """One of an API server that is not there."""
    config = ClusterConfig(server="https://127.0.0.1:1", token="t")
    return json.dumps(config.to_kubeconfig())


@pytest.fixture
def mcm_of(binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[Callable[..., Mcm]]:
    """`mcm_of(kubeconfig)`: mcm with the identity of a kubeconfig, not started yet; in the end nothing is left.

    `programs` are directories with its programs, in place of all that there are.
    """

    def make(kubeconfig: Path, *, programs: tuple[Path, ...] = binaries.directories) -> Mcm:
        return stack.enter_context(_mcm(kubeconfig, programs=programs, request=request))

    with contextlib.ExitStack() as stack:
        yield make


@pytest.fixture
def mcm(api_server: Any, mcm_of: Callable[[Path], Mcm]) -> Mcm:
    """mcm on the management cluster, not started yet, with the identity and the rights that it has in production."""
    return mcm_of(api_server.mcm_kubeconfig)


@contextlib.contextmanager
def _mcm(kubeconfig: Path, *, programs: tuple[Path, ...], request: pytest.FixtureRequest) -> Iterator[Mcm]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    found = Mcm(directory, kubeconfig=kubeconfig, programs=programs)
    try:
        yield found
        if found.process is not None and found.process.poll() is None:
            assert found.end() == 0, found.log.read_text()
        assert not found.instances()
    finally:
        for log in (found.log, *sorted(found.state.rglob("log"))):
            if log.is_file():
                request.node.add_report_section("teardown", str(log), log.read_text()[-20_000:])
        if found.process is not None and found.process.poll() is None:
            found.process.kill()
            found.process.wait()
        for pid in found.instances():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


class Fleet:
    """Registrations as controlplane-operator resolves them, written by hand."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.namespace = f"kplane-cp-{uuid.uuid4().hex[:10]}"
        self._names: list[str] = []

    def name(self, stem: str) -> str:
        return f"{stem}-{self.namespace[-10:]}"

    async def open(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def aclose(self) -> None:
        for name in self._names:
            with contextlib.suppress(NotFound):
                await self.client.delete(REGISTRATIONS, name)
        await self.client.delete(NAMESPACES, self.namespace)

    async def register(
        self,
        stem: str,
        secret: Mapping[str, bytes],
        *,
        server: str,
        profile: str = "Nodeless",
        services: tuple[str, ...] = ("Controllers",),
    ) -> str:
        await self.put_secret(stem, secret)
        return await self.add(stem, server=server, secret=stem, profile=profile, services=services)

    async def add(
        self, stem: str, *, server: str, secret: str, profile: str = "Nodeless", services: tuple[str, ...]
    ) -> str:
        """Create a registration with a Secret that is there."""
        name = self.name(stem)
        spec = {"controlPlaneRef": {"name": name}, "services": list(services)}
        await self.client.create(REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
        self._names.append(name)
        await self.resolve(stem, server=server, secret=secret, profile=profile, services=services)
        return name

    async def put_secret(self, stem: str, secret: Mapping[str, bytes]) -> None:
        """Write a Secret, and let mcm read it and no other one."""
        data = {key: base64.b64encode(value).decode() for key, value in secret.items()}
        metadata = {"name": stem, "namespace": self.namespace}
        await self.client.apply(SECRETS, {"metadata": metadata, "data": data})
        rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [stem], "verbs": ["get", "watch"]}]
        await self.client.apply(ROLES, {"metadata": metadata, "rules": rules})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": stem},
            "subjects": [{"apiGroup": group, "kind": "User", "name": MCM_USER}],
        }
        await self.client.apply(ROLE_BINDINGS, binding)

    async def told(self, stem: str) -> tuple[str, str, str]:
        """What the registration says of its instance: status and reason of Running, and for which control plane."""
        return self.instance_in(await self.client.get(REGISTRATIONS, self.name(stem)))

    async def withdraw(self, stem: str) -> None:
        """Have the registration be not ready, as while its control plane is deleted."""
        found = await self.client.get(REGISTRATIONS, self.name(stem))
        status = {"ready": False, "controlPlaneUID": None, "observedGeneration": found["metadata"]["generation"]}
        await self.client.patch(REGISTRATIONS, self.name(stem), {"status": status}, subresource="status")

    async def resolve(
        self,
        stem: str,
        *,
        server: str,
        secret: str,
        profile: str = "Nodeless",
        services: tuple[str, ...] = ("Controllers",),
    ) -> None:
        found = await self.client.get(REGISTRATIONS, self.name(stem))
        status = {
            "ready": True,
            "observedGeneration": found["metadata"]["generation"],
            "resolvedEndpoint": server,
            "resolvedControllersSecretRef": {"name": secret, "namespace": self.namespace},
            "controlPlaneUID": self.uid_at(server),
            "services": list(services),
            "controllers": {"profile": profile} if profile else {},
        }
        await self.client.patch(REGISTRATIONS, self.name(stem), {"status": status}, subresource="status")

    @staticmethod
    def uid_at(server: str) -> str:
        """The uid of the control plane at an address."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, server))

    @staticmethod
    def instance_in(registration: Mapping[str, Any]) -> tuple[str, str, str]:
        """Status and reason of Running, and for which control plane the instance is."""
        status = registration["status"]
        found: dict[str, str] = next((item for item in status.get("conditions", ()) if item["type"] == "Running"), {})
        return found.get("status", ""), found.get("reason", ""), status.get("instance", {}).get("controlPlaneUID", "")


@pytest.fixture
async def fleet(api_server: Any) -> AsyncIterator[Fleet]:
    """Registrations on the management cluster, without the operator."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        found = Fleet(client)
        await found.open()
        try:
            yield found
        finally:
            await found.aclose()
