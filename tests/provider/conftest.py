"""A server that misbehaves as told, and identities on the real API server."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import ipaddress
import json
import selectors
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from provider import (
    CONFIG_MAPS,
    NAMESPACES,
    AlreadyExists,
    Client,
    Cluster,
    ClusterConfig,
    Clusters,
    Manager,
    NotFound,
    Resource,
)
from provider.entry import EntryReader
from provider.event import Event


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates that are good for an hour."""

    def __init__(self, name: str = "test-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, hours: int = 1) -> Any:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=3))
            .not_valid_after(now + dt.timedelta(hours=hours))
        )

    def issue(self, name: str = "server", *, address: str = "127.0.0.1", hours: int = 1) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("served.test")]
        )
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, hours=hours)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FaultServer:
    """Speaks just enough HTTP over TLS to break it; `answer` writes raw bytes."""

    config: ClusterConfig
    authority: Authority
    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    certificates: list[bytes] = field(default_factory=list)


def http(body: bytes | dict[str, Any], *, status: int = 200, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


async def _read_request(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in rest if line)}
    return Asked(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


class Tools:
    """What the tests of this directory build with."""

    Authority = Authority
    http = staticmethod(http)
    stream_head = staticmethod(stream_head)
    chunk = staticmethod(chunk)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
async def fault_server(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[FaultServer]]]:
    """`await fault_server(answer, issued=None)`: starts one that ends with the test.

    With `clients`, who connects has to show a certificate that this authority signed; they are kept.
    """
    stack = contextlib.AsyncExitStack()

    async def start(
        answer: Answer, *, issued: Issued | None = None, plain: bytes = b"", clients: Authority | None = None
    ) -> FaultServer:
        authority = Authority()
        issued = issued or authority.issue()
        (tmp_path / "server.pem").write_bytes(issued.certificate + issued.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem")
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=clients.pem.decode())

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server.connections += 1
            if clients is not None:
                shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                server.certificates.append(ssl.DER_cert_to_PEM_cert(shown).encode())
            if plain:
                await reader.read(10)
                writer.write(plain)
                await writer.drain()
                writer.transport.abort()
                return
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                while (asked := await _read_request(reader)) is not None:
                    server.asked.append(asked)
                    await server.answer(asked, writer)
                    await writer.drain()
            server.connections -= 1
            writer.transport.abort()

        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=None if plain else context)
        port = listening.sockets[0].getsockname()[1]
        server = FaultServer(ClusterConfig(f"https://127.0.0.1:{port}", ca_data=authority.pem), authority, answer)

        async def stop() -> None:
            listening.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        stack.push_async_callback(stop)
        return server

    async with stack:
        yield start


class MadeUpTime(asyncio.SelectorEventLoop):
    """A loop that never waits: where nothing is to be done, it is later at once."""

    def __init__(self) -> None:
        super().__init__(_Impatient(self))
        self.elapsed = 0.0

    def time(self) -> float:
        return self.elapsed


class _Impatient(selectors.SelectSelector):
    def __init__(self, loop: MadeUpTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self._loop.elapsed += timeout
        return super().select(0)


@pytest.fixture(scope="session")
def made_up_time() -> type[MadeUpTime]:
    """`asyncio.Runner(loop_factory=made_up_time)`: hours of it pass at once."""
    return MadeUpTime


@pytest.fixture
async def client(api_server: Any) -> AsyncIterator[Client]:
    """The administrator of the real API server."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    """A namespace of this test alone; the server goes with the session."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
def allowed(client: Client, eventually: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
    """`await allowed(user, rule, namespace="")`: wait until that user may do what a rule that was just written says.

    The API server decides by the roles and bindings that it has watched, some time after they were written.
    """

    async def wait(user: str, rule: dict[str, Any], *, namespace: str = "") -> None:
        asked = {"namespace": namespace, "group": rule["apiGroups"][0], "resource": rule["resources"][0]}
        asked |= {"verb": rule["verbs"][0], "name": rule.get("resourceNames", [""])[0]}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        body = {**review, "spec": {"user": user, "resourceAttributes": asked}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        await eventually(lambda: client.request("POST", path, body=body), lambda found: found["status"]["allowed"])

    return wait


@pytest.fixture
def service_account(
    client: Client, namespace: str, allowed: Callable[..., Awaitable[None]]
) -> Callable[..., Awaitable[ClusterConfig]]:
    """`await service_account(rules)`: the configuration of a new identity with these rules in the test's namespace."""

    async def make(rules: list[dict[str, Any]]) -> ClusterConfig:
        from provider import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS

        name = f"user-{uuid.uuid4().hex[:6]}"
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
        await client.create(ROLES, {"metadata": {"name": name}, "rules": rules}, namespace=namespace)
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        await client.create(ROLE_BINDINGS, binding, namespace=namespace)
        if rules:
            await allowed(f"system:serviceaccount:{namespace}:{name}", rules[0], namespace=namespace)
        token = await client.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        return ClusterConfig(client.config.server, ca_data=client.config.ca_data, token=token["status"]["token"])

    return make


@pytest.fixture
def install(client: Client) -> Callable[..., Awaitable[None]]:
    """`await install(resource, *versions)`: have the API server serve a kind whose objects may look as they like.

    The resource's version and `versions` are served alike. They stay until the server goes, for other tests too.
    """

    async def make(resource: Resource, *versions: str) -> None:
        from provider import CUSTOM_RESOURCE_DEFINITIONS

        group, version = resource.api_version.split("/")
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        names = {"kind": resource.kind, "plural": resource.plural, "listKind": f"{resource.kind}List"}
        served = [
            {"name": each, "served": True, "storage": each == version, "schema": schema, "subresources": {"status": {}}}
            for each in (version, *versions)
        ]
        scope = "Namespaced" if resource.namespaced else "Cluster"
        spec = {"group": group, "scope": scope, "names": names, "versions": served}
        body = {"metadata": {"name": f"{resource.plural}.{group}"}, "spec": spec}
        with contextlib.suppress(AlreadyExists):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)
        async with asyncio.timeout(60):
            for each in (version, *versions):
                while True:
                    try:
                        await client.list(dataclasses.replace(resource, api_version=f"{group}/{each}"))
                    except NotFound:
                        await asyncio.sleep(0.05)
                    else:
                        break

    return make


class Mirror:
    """Takes the place of an informer: it has the objects that a test puts in, and tells handlers of changes at once."""

    def __init__(self, resource: Resource, *, metadata_only: bool) -> None:
        self.reader = EntryReader(resource, server="fake", metadata_only=metadata_only)
        self.entries: dict[Any, Any] = {}
        self.handlers: list[Callable[[Event], None]] = []

    def add_handler(self, handler: Callable[[Event], None]) -> Mirror._Registration:
        self.handlers.append(handler)
        for entry in self.entries.values():
            handler(Event("ADDED", entry, reader=self.reader, initial=True))
        return self._Registration(self, handler)

    def put(self, name: str, *, namespace: str = "ns", **fields: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Any", "metadata": {"name": name, "namespace": namespace}, **fields}
        body["metadata"].update(fields.get("metadata", {}) | {"name": name, "namespace": namespace})
        entry = self.reader.entry(json.dumps(body).encode())
        old = self.entries.get(entry.key)
        self.entries[entry.key] = entry
        self._tell(Event("MODIFIED" if old else "ADDED", entry, reader=self.reader, old=old))

    def remove(self, name: str, *, namespace: str = "ns") -> None:
        self._tell(Event("DELETED", self.entries.pop((namespace, name)), reader=self.reader))

    def _tell(self, event: Event) -> None:
        for handler in tuple(self.handlers):
            handler(event)

    @dataclass(frozen=True)
    class _Registration:
        mirror: Mirror
        handler: Callable[[Event], None]

        def remove(self) -> None:
            self.mirror.handlers.remove(self.handler)


class FakeCluster(Cluster):
    """A cluster without a server: `cluster.maps.put("x")` is an event there."""

    def __init__(self, name: str, *, generation: int = 0) -> None:
        # Another generation is another cluster of the same name.
        super().__init__(name, config=ClusterConfig("https://127.0.0.1:1"), attributes={"generation": str(generation)})
        self.mirrors: dict[tuple[Resource, bool], Mirror] = {}
        self.asked: list[tuple[str, bool]] = []

    @property
    def cache(self) -> Any:
        return self

    def informer(self, resource: Resource, *, metadata_only: bool = False) -> Mirror:
        self.asked.append((resource.kind, metadata_only))
        return self.mirror(resource, metadata_only=metadata_only)

    @property
    def maps(self) -> Mirror:
        return self.mirror(CONFIG_MAPS)

    def mirror(self, resource: Resource, *, metadata_only: bool = False) -> Mirror:
        key = (resource, metadata_only)
        return self.mirrors.setdefault(key, Mirror(resource, metadata_only=metadata_only))


@pytest.fixture
def fake_cluster() -> type[FakeCluster]:
    """Clusters for tests of controllers."""
    return FakeCluster


class Given:
    """A provider of what a test puts into its fleet."""

    name = "given"

    def __init__(self):
        self.fleet = asyncio.get_running_loop().create_future()

    async def run(self, fleet):
        self.fleet.set_result(fleet)
        await asyncio.Event().wait()


class Work:
    """A reconciler that notes what it is asked, and does as it is told."""

    def __init__(self):
        self.asked = []
        self.begun = collections.Counter()
        self.ended = []
        self.answers = {}
        self.gates = {}

    async def reconcile(self, request):
        self.asked.append(request)
        gate = self.gates.get(request.name)
        if gate is not None:
            try:
                await gate.wait()
            finally:
                self.ended.append(request)
        answer = self.answers.get(request.name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def names(self, cluster):
        return [each.name for each in self.asked if each.cluster == cluster]


@contextlib.asynccontextmanager
async def _fleet(manager):
    """Run the manager; what is given is its provider's fleet."""
    async with manager:
        yield await manager.provider.fleet


@pytest.fixture
def given() -> type[Given]:
    """A provider for tests."""
    return Given


@pytest.fixture
async def manager() -> Manager:
    """With such a provider, and two workers for each of its controllers."""
    return Manager(None, Given(), max_concurrent=2)


@pytest.fixture
def new_work() -> type[Work]:
    """Reconcilers for tests."""
    return Work


@pytest.fixture
def work() -> Work:
    """A reconciler for tests."""
    return Work()


@pytest.fixture
def fleet() -> Any:
    """`async with fleet(manager) as given`: runs it, and `given.add_or_replace(cluster)` is what its provider says."""
    return _fleet


@contextlib.asynccontextmanager
async def _telling(provider, fleet=None):
    clusters = Clusters() if fleet is None else fleet
    task = asyncio.create_task(provider.run(clusters))
    try:
        yield clusters
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        if fleet is None:
            await clusters.aclose()


@pytest.fixture
def telling() -> Any:
    """`async with telling(provider) as clusters`: runs it, which must not end by itself; `fleet`, if given, stays."""
    return _telling
