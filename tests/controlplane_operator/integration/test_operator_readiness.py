"""/readyz follows what is known of the management cluster; /healthz does not, for a restart would help nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from controlplane_operator import relisting
from controlplane_operator.operator import run_operator
from controlplane_operator.settings import EtcdAt, Settings
from embedded.handle import Handle
from provider import ClusterConfig

pytestmark = pytest.mark.integration


class Line:
    """A line to an API server that can be cut."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._to = address.hostname or "", address.port or 443
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        # It never listens: what comes is refused, and nobody else gets the port while the line is cut.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]

    async def lay(self) -> None:
        """Let through."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port, reuse_port=True)

    def end(self) -> None:
        self.cut()
        self._held.close()

    def cut(self) -> None:
        """End what is let through, and refuse what comes."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        finally:
            for each in (writer, back):
                self._writers.discard(each)
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()


@pytest.fixture
async def line(api_server: Handle) -> AsyncIterator[Line]:
    made = Line(ClusterConfig.load(api_server.operator_kubeconfig).server)
    await made.lay()
    yield made
    made.end()


@pytest.fixture
async def url(
    api_server: Handle, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_port: Callable[[], int]
) -> AsyncIterator[str]:
    """Of an operator at the end of the line, whose minutes are seconds."""
    monkeypatch.setattr(relisting, "_PERIOD_SECONDS", 1.0)
    monkeypatch.setattr(relisting, "_STALE_SECONDS", 5.0)
    config = replace(ClusterConfig.load(api_server.operator_kubeconfig), server=f"https://127.0.0.1:{line.port}")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config.to_kubeconfig()))
    stop, port = asyncio.Event(), hold_port()
    settings = Settings(
        kubeconfig=kubeconfig,
        state_directory=tmp_path / "state",
        program_directories=api_server.programs,
        listen_host="127.0.0.1",
        listen_port=port,
        shared_etcd=EtcdAt(api_server.tenants_etcd.endpoint, api_server.tenants_etcd_credentials),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(run_operator(settings, stop=stop))
        yield f"http://127.0.0.1:{port}"
        stop.set()


async def ask(url: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}{path}") as answer:
        return answer.status, await answer.text()


async def test_an_operator_that_lost_the_management_cluster_is_not_ready_until_it_has_it_back(
    url: str, line: Line, eventually: Any
) -> None:
    async def readyz() -> tuple[int, str]:
        return await ask(url, "/readyz")

    assert "[+]caches ok" in (await eventually(readyz, lambda answer: answer[0] == 200))[1]
    line.cut()

    def is_cut_off(answer: tuple[int, str]) -> bool:
        parts = ("[-]caches the management cluster could not be listed since ", "[+]shared-etcd ok")
        return answer[0] == 503 and all(part in answer[1] for part in parts)

    await eventually(readyz, is_cut_off)
    assert await ask(url, "/healthz") == (200, "ok\n")
    await line.lay()
    await eventually(readyz, lambda answer: answer[0] == 200, timeout=120.0)
