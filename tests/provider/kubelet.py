"""A fake API server with pods: logs, `exec` and `portforward` as a kubelet answers them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from typing_extensions import override

from kplane.provider import ClusterConfig
from tests.tls_server import serve_over_tls

__all__ = ["Kubelet", "pod", "serving"]

PODS = "/api/v1/namespaces/{namespace}/pods"
POD = f"{PODS}/{{pod}}"
SERVICE = "/api/v1/namespaces/{namespace}/services/{service}"
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
SUCCESS = {"status": "Success"}


def exit_code(code: int) -> dict[str, object]:
    """Return the Status of a command that ended with a code."""
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


class Command:
    """A running command, as seen by the fake server."""

    def __init__(self, socket: web.WebSocketResponse, arguments: list[str]) -> None:
        self.socket = socket
        self.arguments = arguments

    async def stdin(self) -> AsyncIterator[bytes]:
        """Yield the input until it is closed."""
        async for message in self.socket:
            if message.data == bytes((CLOSE, STDIN)):
                return
            assert message.data[0] == STDIN
            yield message.data[1:]

    async def send(self, channel: int, data: bytes) -> None:
        """Write data to a channel."""
        await self.socket.send_bytes(bytes((channel,)) + data)

    async def end(self, status: dict[str, object]) -> None:
        """Send the Status that ends the command."""
        await self.send(STATUS, json.dumps(status).encode())


class _LateResponse(web.StreamResponse):
    """Sends its header with the first bytes of the body."""

    def __init__(self, request: web.Request) -> None:
        super().__init__()
        self._asked = request

    @override
    async def write(self, data: bytes | bytearray | memoryview[int] | memoryview[bytes]) -> None:
        if not self.prepared:
            await self.prepare(self._asked)
        await super().write(data)


@dataclass
class Kubelet:
    """State of the fake server: its answers, and the requests that it got."""

    config: ClusterConfig
    protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    run: Callable[[Command], Awaitable[None]] | None = None
    log: Callable[[web.StreamResponse], Awaitable[None]] | None = None
    serve: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None
    late_header: bool = False
    """Send the header of a log with its first bytes, as kubelets do."""
    phase: str = "Running"
    refusal: int = 0
    service: dict[str, Any] | None = None
    """The only Service, under any name."""
    pods: list[dict[str, Any]] = field(default_factory=list)
    """The pods that each list returns. The label selector has no effect."""
    selectors: list[str] = field(default_factory=list)
    """The label selectors that pods were listed by."""
    unreachable: set[str] = field(default_factory=set)
    """The names of pods whose kubelet does not answer the API server."""
    asked: list[web.Request] = field(default_factory=list)
    open: int = 0
    """Number of streams that are open."""

    async def _answer_pod(self, request: web.Request) -> web.Response:
        name = request.match_info["pod"]
        if name == "missing":
            return self._status(404, "NotFound", f'pods "{name}" not found')
        return web.json_response({"metadata": {"name": name}, "status": {"phase": self.phase}})

    async def _answer_pods(self, request: web.Request) -> web.Response:
        self.selectors.append(request.query.get("labelSelector", ""))
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods})

    async def _answer_service(self, request: web.Request) -> web.Response:
        if self.service is None:
            return self._status(404, "NotFound", f'services "{request.match_info["service"]}" not found')
        return web.json_response({"metadata": {"name": request.match_info["service"]}, "spec": self.service})

    def _status(self, code: int, reason: str, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)

    @contextlib.contextmanager
    def _opened(self, request: web.Request) -> Iterator[None]:
        self.asked.append(request)
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def _answer_log(self, request: web.Request) -> web.StreamResponse:
        with self._opened(request):
            if self.refusal:
                return self._status(self.refusal, "Forbidden", "pods is forbidden")
            response = _LateResponse(request) if self.late_header else web.StreamResponse()
            if not self.late_header:
                await response.prepare(request)
            assert self.log is not None
            await self.log(response)
            return response

    async def _answer_exec(self, request: web.Request) -> web.StreamResponse:
        async def run(socket: web.WebSocketResponse) -> None:
            assert self.run is not None
            await self.run(Command(socket, request.query.getall("command")))

        return await self._stream(request, run)

    async def _answer_port_forward(self, request: web.Request) -> web.StreamResponse:
        async def serve(socket: web.WebSocketResponse) -> None:
            head = int(request.query["ports"]).to_bytes(2, "little")
            await socket.send_bytes(b"\0" + head)
            await socket.send_bytes(b"\1" + head)
            assert self.serve is not None
            await self.serve(socket)

        return await self._stream(request, serve)

    async def _stream(
        self, request: web.Request, work: Callable[[web.WebSocketResponse], Awaitable[None]]
    ) -> web.StreamResponse:
        with self._opened(request):
            if self.refusal:
                return self._status(self.refusal, "Forbidden", "pods is forbidden")
            if request.match_info["pod"] in self.unreachable:
                return self._status(500, "InternalError", "error dialing backend")
            socket = web.WebSocketResponse(protocols=self.protocols)
            await socket.prepare(request)
            await work(socket)
            await socket.close()
            return socket


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Kubelet]:
    """Serve on 127.0.0.1. The test sets the answers as fields of the yielded Kubelet."""
    app = web.Application()
    kubelet = Kubelet(ClusterConfig("https://127.0.0.1:1", token="secret"))
    app.router.add_get(SERVICE, kubelet._answer_service)
    app.router.add_get(PODS, kubelet._answer_pods)
    app.router.add_get(POD, kubelet._answer_pod)
    app.router.add_get(f"{POD}/log", kubelet._answer_log)
    app.router.add_get(f"{POD}/exec", kubelet._answer_exec)
    app.router.add_get(f"{POD}/portforward", kubelet._answer_port_forward)
    async with serve_over_tls(app, directory) as config:
        kubelet.config = config
        yield kubelet


def pod(name: str, *, ready: bool = True, since: str = "2026-01-01T00:00:00Z", ending: bool = False) -> dict[str, Any]:
    """Return a pod whose container names port 8080 `web`."""
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    return {
        "metadata": {"name": name, **({"deletionTimestamp": since} if ending else {})},
        "spec": {"containers": [{"name": "main", "ports": [{"name": "web", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "conditions": [condition]},
    }


async def echo(socket: web.WebSocketResponse) -> None:
    """Send each message of the data channel back."""
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)


async def forever(*_: object) -> None:
    """Wait until the server cancels the handler."""
    await asyncio.Event().wait()
