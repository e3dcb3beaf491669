"""Two operators on a management cluster, each behind its own proxy to the API server, which records writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kplane.api.names import OPERATOR_LEASE, OPERATOR_LEASE_NAMESPACE
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.embedded.handle import Handle
from kplane.embedded.manifests import rbac_manifests
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import KeyPair, create_authority, issue_serving
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, LEASES
from kplane.provider.client.tls import ssl_context
from kplane.workloads import end_processes

PROCESSES = ("--runtime=process",)
PODS = ("--runtime=pods", "--kube-apiserver-image=unused", "--etcd-image=unused")
"""Replicas of an installation have separate state directories. These tests start no pod."""

NAMESPACE, LEASE = OPERATOR_LEASE_NAMESPACE, OPERATOR_LEASE


@dataclass(frozen=True)
class Write:
    """A write request, and the time at which it reached the proxy."""

    at: float
    by: str
    what: str


@dataclass
class Way:
    """A proxy of the API server, with the operator's identity."""

    name: str
    kubeconfig: Path
    log: list[Write]
    held_by: list[str] = field(default_factory=list)
    """Holders of the Lease as written by the operator, in order; empty if the operator released the Lease."""
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, session: aiohttp.ClientSession, server: str, request: web.Request) -> web.StreamResponse:
        await self.open.wait()
        if request.method != "GET" and "/leases/" not in request.path:
            self.log.append(Write(time.monotonic(), self.name, f"{request.method} {request.path}"))
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        # aiohttp sends b"" with a content type that no API server accepts.
        body = await request.read() or None
        if body is not None and request.path.endswith(f"/leases/{LEASE}"):
            self.held_by.append(json.loads(body).get("spec", {}).get("holderIdentity") or "")
        async with session.request(request.method, f"{server}{request.raw_path}", headers=headers, data=body) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await self.open.wait()
                await response.write(part)
            return response


@contextlib.asynccontextmanager
async def way(name: str, *, handle: Handle, directory: Path, log: list[Write]) -> AsyncIterator[Way]:
    config = ClusterConfig.load(handle.operator_kubeconfig)
    authority = create_authority(f"way-of-{name}")
    proxy = Way(name, directory / f"{name}.kubeconfig", log)
    proxy.open.set()
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context(config))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            assert isinstance(request, web.Request)
            return await proxy.handle(session, config.server, request)

        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_serving(authority, directory)).start()
            port = runner.addresses[0][1]
            proxy.kubeconfig.write_bytes(_kubeconfig(f"https://127.0.0.1:{port}", authority))
            yield proxy
        finally:
            proxy.open.set()
            await runner.cleanup()


def _serving(authority: KeyPair, directory: Path) -> ssl.SSLContext:
    pair = issue_serving(authority, common_name="way", hosts=["127.0.0.1"])
    file = directory / "way.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def _kubeconfig(server: str, authority: KeyPair) -> bytes:
    return render_kubeconfig(server=server, ca=authority.certificate, token="anybody")


@dataclass
class Operator:
    """Process of one of the two operators."""

    name: str
    way: Way
    url: str
    process: asyncio.subprocess.Process

    async def ready(self) -> str:
        """Return the text of /readyz; raise if the operator is not ready or does not answer."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz?verbose") as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text

    async def leads(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return f'leader_election_master_status{{name="{LEASE}"}} 1.0' in await answer.text()

    async def ended(self, *, within: float) -> int:
        async with asyncio.timeout(within):
            return await self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class Pair:
    """Two operators, of which the first is the leader."""

    first: Operator
    second: Operator
    log: list[Write]
    client: Client
    eventually: Callable[..., Awaitable[Any]]

    async def create_class(self, name: str) -> None:
        typed = {"apiVersion": CONTROL_PLANE_CLASSES.api_version, "kind": CONTROL_PLANE_CLASSES.kind}
        await self.client.create(CONTROL_PLANE_CLASSES, {**typed, "metadata": {"name": name}, "spec": {}})

    async def worked_on(self, name: str) -> bool:
        """Return whether an operator has reconciled the current generation of the class."""
        control_plane_class = await self.client.get(CONTROL_PLANE_CLASSES, name)
        conditions = control_plane_class.get("status", {}).get("conditions") or [{}]
        return bool(conditions[0].get("observedGeneration") == control_plane_class["metadata"]["generation"])

    async def holder(self) -> str:
        spec = (await self.client.get(LEASES, LEASE, namespace=NAMESPACE)).get("spec", {})
        return spec.get("holderIdentity") or ""

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Edit a class continuously, so that the leader writes continuously."""

        async def edit() -> None:
            for number in range(1 << 20):
                deletion = ("Retain", "Destroy")[number % 2]
                await self.client.patch(CONTROL_PLANE_CLASSES, "busy", {"spec": {"deletionPolicy": deletion}})
                await asyncio.sleep(0.02)

        await self.create_class("busy")
        editing = asyncio.create_task(edit())
        try:
            yield
        finally:
            editing.cancel()
            await asyncio.wait((editing,))
        assert editing.cancelled()

    def alternations(self) -> list[str]:
        """Return the writers in the order of their writes, without consecutive repetitions."""
        names = [write.by for write in sorted(self.log, key=lambda write: write.at)]
        return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


async def start(
    name: str, *, way: Way, handle: Handle, state: Path, log: Path, port: int, runtime: Sequence[str] = PROCESSES
) -> Operator:
    listen = f"127.0.0.1:{port}"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(*_command(way, handle, state, listen, runtime), stderr=errors)
    return Operator(name, way, f"http://{listen}", process)


def _command(way: Way, handle: Handle, state: Path, listen: str, runtime: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "kplane.controlplane_operator.main",
        f"--kubeconfig={way.kubeconfig}",
        *runtime,
        f"--state-dir={state}",
        *(f"--programs-dir={directory}" for directory in handle.programs),
        f"--shared-etcd-endpoint={handle.tenants_etcd.endpoint}",
        f"--shared-etcd-credentials={handle.tenants_etcd_credentials}",
        f"--listen={listen}",
    ]


async def _clean(client: Client, eventually: Callable[..., Awaitable[Any]]) -> None:
    for resource in (CONTROL_PLANES, CONTROL_PLANE_CLASSES):
        for obj in (await client.list(resource)).items:
            with contextlib.suppress(NotFound):
                await client.delete(resource, obj["metadata"]["name"])

    async def left() -> int:
        return len((await client.list(CONTROL_PLANES)).items)

    await eventually(left, lambda found: found == 0, timeout=120.0)


@contextlib.asynccontextmanager
async def rights_to_run_pods(client: Client) -> AsyncIterator[None]:
    """Give the operator of the embedded cluster the rights to run components as pods."""
    plain = {(item["kind"], item["metadata"]["name"]) for item in rbac_manifests()}
    kinds = {"ClusterRole": CLUSTER_ROLES, "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS}
    rights = [
        (kinds[item["kind"]], item)
        for item in rbac_manifests(pods=True)
        if item["kind"] in kinds and (item["kind"], item["metadata"]["name"]) not in plain
    ]
    for resource, item in rights:
        await client.apply(resource, item, force=True)
    try:
        yield
    finally:
        for resource, item in rights:
            await client.delete(resource, item["metadata"]["name"])


@pytest.fixture
def one_directory(request: pytest.FixtureRequest) -> bool:
    """Whether both operators share a directory for processes, so that the second finds processes of the first.

    The lock of the directory admits the second operator only after the end of the first.
    """
    return bool(getattr(request, "param", False))


@pytest.fixture
async def pair(
    api_server: Handle,
    eventually: Callable[..., Awaitable[Any]],
    hold_port: Callable[[], int],
    tmp_path: Path,
    *,
    one_directory: bool,
) -> AsyncIterator[Pair]:
    """Two operators. Their objects are deleted afterwards, if an operator is left to do so."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-election-"))
    log: list[Write] = []
    operators: list[Operator] = []
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.push_async_callback(end_processes, directory, grace_seconds=2.0)
        client = await stack.enter_async_context(
            Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane")
        )
        await stack.enter_async_context(rights_to_run_pods(client))
        try:
            for name in ("first", "second"):
                proxy = await stack.enter_async_context(way(name, handle=api_server, directory=directory, log=log))
                operator_log = tmp_path / f"{name}.log"
                state = directory / ("both" if one_directory else f"of-{name}")
                runtime = PROCESSES if one_directory else PODS
                operators.append(
                    await start(
                        name,
                        way=proxy,
                        handle=api_server,
                        state=state,
                        log=operator_log,
                        port=hold_port(),
                        runtime=runtime,
                    )
                )
                await eventually(operators[-1].ready, timeout=120.0)
                if name == "first":
                    await eventually(operators[-1].leads)
            yield Pair(*operators, log, client, eventually)
            await _clean(client, eventually)
        finally:
            for operator in operators:
                if operator.process.returncode is None:
                    operator.signal(signal.SIGCONT)
                    operator.signal(signal.SIGTERM)
            for operator in operators:
                try:
                    await operator.ended(within=60.0)
                except TimeoutError:
                    operator.signal(signal.SIGKILL)
                    await operator.process.wait()
                    raise
