"""Fake nodes of silent control planes, and of control planes with an invalid annotation, on fake API servers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from kplane.api.names import (
    FAKE_NODES_ANNOTATION,
    KUBECONFIG_EXTERNAL_KEY,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.embedded import fake_nodes
from kplane.embedded.fake_nodes import FakeNodes
from kplane.embedded.kwok import release_leases
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import LEASES, NODES
from tests.tls_server import serve_over_tls

Eventually = Callable[..., Any]
LEASE_PATH = LEASES.path(namespace="kube-node-lease")


class Server:
    """A fake API server with the control planes of a management cluster, and with the nodes of a control plane."""

    def __init__(self, directory: Path) -> None:
        self.control_planes: dict[str, str] = {}
        self.kubeconfigs: dict[str, ClusterConfig] = {}
        self.nodes: set[str] = set()
        self.leases: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.config = ClusterConfig(server="https://127.0.0.1:1")
        self._directory = directory
        self._revision = 1
        self._watches: list[asyncio.Queue[dict[str, Any]]] = []

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with serve_over_tls(app, self._directory) as self.config:
            yield

    def annotate(self, name: str, value: str) -> None:
        self.control_planes[name] = value
        self._revision += 1
        for watch in self._watches:
            watch.put_nowait({"type": "MODIFIED", "object": self._control_plane(name)})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        name = request.path.rpartition("/")[2]
        if request.path == CONTROL_PLANES.path():
            if "watch" in request.query:
                return await self._watch(request)
            return _listed(map(self._control_plane, self.control_planes))
        if "/secrets/" in request.path:
            return self._secret(name)
        if request.path == NODES.path():
            return _listed({"metadata": {"name": item}} for item in sorted(self.nodes))
        if request.path == LEASE_PATH:
            return _listed({"metadata": {"name": item, "namespace": "kube-node-lease"}} for item in self.leases)
        if request.method == "PATCH":
            self.nodes.add(name)
        return web.json_response({"metadata": {"name": name}})

    def _control_plane(self, name: str) -> dict[str, Any]:
        annotations = {FAKE_NODES_ANNOTATION: self.control_planes[name]}
        metadata = {"name": name, "uid": name, "resourceVersion": str(self._revision), "annotations": annotations}
        kind = {"apiVersion": CONTROL_PLANES.api_version, "kind": CONTROL_PLANES.kind}
        return {**kind, "metadata": metadata, "spec": {}}

    def _secret(self, name: str) -> web.Response:
        configs = {kubeconfig_secret_name(control_plane): config for control_plane, config in self.kubeconfigs.items()}
        content = base64.b64encode(yaml.safe_dump(configs[name].to_kubeconfig()).encode()).decode()
        return web.json_response({"metadata": {"name": name}, "data": {KUBECONFIG_EXTERNAL_KEY: content}})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query:
            return web.json_response({"kind": "Status", "code": 422, "reason": "Invalid"}, status=422)
        events = asyncio.Queue[dict[str, Any]]()
        self._watches.append(events)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(json.dumps(await events.get()).encode() + b"\n")


def _listed(items: Any) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(items)})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    async with server.serving():
        yield server


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program in place of kwok that never becomes ready."""
    path = tmp_path / "kwok"
    path.write_text("#!/bin/sh\nexec sleep 1000\n")
    path.chmod(0o700)
    return path


async def test_silent_api_servers_do_not_delay_other_control_planes(
    server: Server, program: Path, tmp_path: Path, eventually: Eventually
) -> None:
    reached: set[str] = set()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(9):
            name = f"silent-{number}"

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
                reached.add(name)
                with contextlib.closing(writer):
                    await reader.read(-1)

            listener = await stack.enter_async_context(await asyncio.start_server(accept, "127.0.0.1"))
            address = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            server.control_planes[name] = "1"
            server.kubeconfigs[name] = ClusterConfig(server=address, token="secret")
        async with FakeNodes(server.config, directory=tmp_path / "run", program=program):
            await eventually(lambda: len(reached), lambda found: found == 9, timeout=8.0)
            server.kubeconfigs["acme"] = server.config
            server.annotate("acme", "1")
            await eventually(lambda: server.nodes, lambda found: found == {"fake-node-1"}, timeout=8.0)


async def test_invalid_annotation_keeps_nodes_and_token_is_renewed(
    server: Server, program: Path, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_nodes, "_LOOK_SECONDS", 0.1)
    server.control_planes["acme"] = "1"
    server.kubeconfigs["acme"] = server.config
    directory = tmp_path / "run" / management_namespace("acme")
    token = directory / "files" / "token"
    async with FakeNodes(server.config, directory=tmp_path / "run", program=program):
        await eventually(lambda: token.read_text(), lambda found: found == "secret")
        server.annotate("acme", "many")
        event_request = ("POST", "/apis/events.k8s.io/v1/namespaces/default/events")
        await eventually(lambda: event_request in server.requests)
        start = len(server.requests)
        renewed = ClusterConfig(server=server.config.server, ca_data=server.config.ca_data, token="renewed")
        server.kubeconfigs["acme"] = renewed
        await eventually(lambda: token.read_text(), lambda found: found == "renewed")
        assert not [path for _, path in server.requests[start:] if path.startswith(NODES.path())]
        assert server.requests.count(event_request) == 1
        assert server.nodes == {"fake-node-1"}


async def test_invalid_annotation_starts_no_kwok(
    server: Server, program: Path, tmp_path: Path, eventually: Eventually
) -> None:
    server.control_planes["acme"] = "many"
    async with FakeNodes(server.config, directory=tmp_path / "run", program=program):
        await eventually(lambda: ("POST", "/apis/events.k8s.io/v1/namespaces/default/events") in server.requests)
    assert not (tmp_path / "run" / management_namespace("acme")).exists()


async def test_release_leases_deletes_only_leases_of_fake_nodes(server: Server) -> None:
    server.leases = ["fake-node-2", "machine", "fake-node-9"]
    async with Client(server.config, field_manager="kplane") as client:
        await release_leases(client, 3)
    deleted = [path for method, path in server.requests if method == "DELETE"]
    assert deleted == [f"{LEASE_PATH}/fake-node-2"]
