"""Fixtures: a server with scripted faults, clocks, and identities on the real API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import ipaddress
import json
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

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import LEASES, NAMESPACES
from kplane.provider.coordination.lease import clock
from kplane.provider.coordination.peers import PART_OF
from kplane.provider.fleet.clusters import Clusters
from tests import custom_kinds


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates that are valid for an hour."""

    def __init__(self, name: str = "test-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, hours: int = 1, ahead_hours: int = 0
    ) -> Any:
        now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=ahead_hours)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=3))
            .not_valid_after(now + dt.timedelta(hours=hours))
        )

    def issue(
        self, name: str = "server", *, address: str = "127.0.0.1", hours: int = 1, ahead_hours: int = 0
    ) -> Issued:
        """Return a certificate that expires in `hours`, by an issuer whose clock is `ahead_hours` ahead."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("served.test")]
        )
        certificate = (
            self._builder(subject, key, hours=hours, ahead_hours=ahead_hours)
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
    """A received request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FaultServer:
    """A server of HTTP over TLS whose `answer` writes raw bytes."""

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
    """Building blocks of the tests in this directory."""

    Authority = Authority
    http = staticmethod(http)
    stream_head = staticmethod(stream_head)
    chunk = staticmethod(chunk)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
async def fault_server(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[FaultServer]]]:
    """`await fault_server(answer, issued=None)`: start a server that stops after the test.

    With `clients`, each client has to present a certificate of this authority. The server keeps the certificates.
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


class Clock:
    """A clock for `now=` that a test moves forward or stops, so that a Lease expires without a wait."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        return clock() + self._ahead if self._stopped_at is None else self._stopped_at

    def skip(self, seconds: float) -> None:
        self._ahead += seconds
        if self._stopped_at is not None:
            self._stopped_at += seconds

    def stop(self, at: float | None = None) -> None:
        """Stop the clock at `at`, or at the present time."""
        self._stopped_at = self() if at is None else at


@pytest.fixture
def stepped_clock() -> Clock:
    """A clock that stands still until the test calls `skip(seconds)`."""
    made = Clock()
    made.stop()
    return made


@pytest.fixture
def running_clock() -> Clock:
    """A clock that runs like any other until the test stops it."""
    return Clock()


@pytest.fixture
def free_leases(client: Client, namespace: str) -> Callable[..., Awaitable[None]]:
    """`await free_leases(*names)`: create free Leases, because a missing Lease is not acquired at once."""

    async def make(*names: str) -> None:
        for name in names:
            # Peers watch only Leases with these labels.
            await client.create(LEASES, {"metadata": {"name": name, "namespace": namespace, "labels": PART_OF}})

    return make


@pytest.fixture
async def client(api_server: Any) -> AsyncIterator[Client]:
    """The administrator of the real API server."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield client


@pytest.fixture
async def namespace(client: Client) -> str:
    """A namespace of this test alone. The server ends with the session, so the namespace is not deleted."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@pytest.fixture
def allowed(client: Client, eventually: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
    """`await allowed(user, rule, namespace="")`: wait until a new rule is in force for the user.

    The API server reads roles and bindings from its own watches, with a delay.
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
    """`await service_account(rules)`: create an identity with these rules in the namespace; returns its config."""

    async def make(rules: list[dict[str, Any]]) -> ClusterConfig:
        from kplane.provider.client.resources import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS

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
    """`await install(resource, *versions)`: install a CRD without a schema.

    The API server serves the resource's version and `versions` until the end of the session.
    """

    return functools.partial(custom_kinds.install, client)


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
    """`async with telling(provider) as clusters`: run a provider, which must not end. A given `fleet` stays open."""
    return _telling
