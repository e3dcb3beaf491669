"""Real control planes for instances to work on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import shutil
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.programs import Binaries
from kplane.components.api_server import API_SERVER_PORTS, api_server_component, server_url, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.provider import AlreadyExists, Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, LEASES, NAMESPACES, SERVICE_ACCOUNTS
from kplane.workloads import Component, Lifetime, Phase, ProcessRuntime

Eventually = Callable[..., Any]

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
    """A control plane without controllers: only an API server with its own authorities."""

    server: str
    authorities: TenantAuthorities
    directory: Path
    """Directory of the component of the API server, by which tests find its process."""

    @property
    def audit(self) -> Path:
        """Audit log of the API server, with all changes and their users."""
        return self.directory.parent / f"audit-{self.directory.name}.log"

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig.from_kubeconfig(self.kubeconfig(user="admin", groups=("system:masters",)))

    def kubeconfig(self, *, user: str = CONTROLLERS_USER, groups: tuple[str, ...] = ()) -> bytes:
        """Return a kubeconfig with a new client certificate."""
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
    async with asyncio.timeout(120.0):
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
        hosts=(*serving_hosts(address), f"{name}.example.org"),
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


@pytest.fixture
async def tenants(running_tenants: dict[str, Tenant]) -> dict[str, Tenant]:
    """Two control planes, `one` and `two`, without Leases of earlier tests whose mcm was killed."""
    for tenant in running_tenants.values():
        async with Client(tenant.config, field_manager="kplane") as client:
            for program in ("kube-controller-manager", "kube-scheduler"):
                with contextlib.suppress(NotFound):
                    await client.delete(LEASES, program, namespace="kube-system")
    return running_tenants


@pytest.fixture(scope="session")
def running_tenants(binaries: Binaries) -> Iterator[dict[str, Tenant]]:
    """Two control planes, `one` and `two`, on one etcd, in the loop of a thread, so that any test can use them."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    ready, stop = threading.Event(), threading.Event()
    result: dict[str, Any] = {}

    async def run() -> None:
        try:
            async for tenants in _run_tenants(directory, binaries=binaries, names=("one", "two")):
                result["tenants"] = tenants
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


@pytest.fixture
async def one(tenants: Any) -> AsyncIterator[Client]:
    async with Client(tenants["one"].config, field_manager="kplane") as client:
        yield client


@pytest.fixture
async def two(tenants: Any) -> AsyncIterator[Client]:
    async with Client(tenants["two"].config, field_manager="kplane") as client:
        yield client


def manifest(api_version: str, kind: str, name: str, *, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


async def works(client: Client, eventually: Eventually) -> str:
    """Assert that controllers work: a new namespace gets its ServiceAccount. Returns the namespace."""
    name = f"proof-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, manifest("v1", "Namespace", name))
    await eventually(lambda: client.get(SERVICE_ACCOUNTS, "default", namespace=name))
    return name


@contextlib.asynccontextmanager
async def held_by_another(client: Client, program: str) -> AsyncIterator[None]:
    """Hold the leader election Lease of a program as a foreign holder."""
    await _hold(client, program, "theirs", seconds=600)
    try:
        yield
    finally:
        await _hold(client, program, "", seconds=1)


async def _hold(client: Client, program: str, holder: str, *, seconds: int) -> None:
    """Write the Lease as its holder does. An empty holder releases it."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": now, "acquireTime": now}
    body = manifest("coordination.k8s.io/v1", "Lease", program, namespace="kube-system", spec=spec)
    try:
        await client.create(LEASES, body)
    except AlreadyExists:  # an instance had it before
        await client.patch(LEASES, program, {"spec": spec}, namespace="kube-system")


async def controllers_token(client: Client, *, account: str) -> str:
    """Create a ServiceAccount with all rights in a control plane, and return its token."""
    await client.create(SERVICE_ACCOUNTS, manifest("v1", "ServiceAccount", account, namespace="kube-system"))
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = manifest(f"{group}/v1", "ClusterRoleBinding", account, roleRef=role, subjects=[subject])
    await client.create(CLUSTER_ROLE_BINDINGS, binding)
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
    response: Any = await client.request("POST", path, body={"spec": {}})
    return str(response["status"]["token"])


async def gone(client: Client, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, name)
    except NotFound:
        return True
    return False
