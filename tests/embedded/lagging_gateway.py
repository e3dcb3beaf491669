"""A second gateway of an embedded cluster, which receives data of the management cluster with a delay."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

from kplane.binaries.envoy import find_envoy
from kplane.embedded.handle import Handle
from kplane.provider import ClusterConfig
from kplane.provider.aio.cancellation import end_tasks
from tests.gateway.gateway_process import Process, gateway_process

__all__ = ["LaggingGateway", "lagging_gateway"]


@dataclasses.dataclass
class LaggingGateway:
    """A gateway that receives responses of the management cluster `lag_seconds` late."""

    process: Process
    server: str
    lag_seconds: float

    def config(self, of: ClusterConfig) -> ClusterConfig:
        """Return the settings of the same user at this gateway: another server address and perhaps another CA."""
        address = urlsplit(of.server)._replace(netloc=f"127.0.0.1:{self.process.port}")
        ca = of.ca_data if of.tls_server_name is not None else self.process.ca
        return dataclasses.replace(of, server=address.geturl(), ca_data=ca)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection to the management cluster, and delay the responses."""
        address = urlsplit(self.server)
        upstream_reader, upstream_writer = await asyncio.open_connection(address.hostname, address.port)
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def ask() -> None:
            while data := await reader.read(65536):
                upstream_writer.write(data)

        async def answer() -> None:
            while data := await upstream_reader.read(65536):
                queue.put_nowait((loop.time() + self.lag_seconds, data))
            queue.put_nowait((loop.time(), b""))

        async def deliver() -> None:
            while (response := await queue.get())[1]:
                await asyncio.sleep(max(0.0, response[0] - loop.time()))
                writer.write(response[1])

        tasks = [asyncio.create_task(direction()) for direction in (ask, answer, deliver)]
        try:
            await asyncio.wait((tasks[0], tasks[2]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(tasks)
            writer.close()
            upstream_writer.close()


@contextlib.asynccontextmanager
async def lagging_gateway(
    cluster: Handle, directory: Path, *, hold_port: Callable[[], int], lag_seconds: float
) -> AsyncIterator[LaggingGateway]:
    """Run a second gateway of the management cluster."""
    async with gateway_process(cluster, directory, envoy=find_envoy(), hold_port=hold_port) as process:
        gateway, tasks = LaggingGateway(process, cluster.server, lag_seconds), set[asyncio.Task[None]]()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.create_task(gateway.carry(reader, writer)))

        link = await asyncio.start_server(begin, "127.0.0.1", 0)
        try:
            port = link.sockets[0].getsockname()[1]
            kubeconfig = directory / "kubeconfig"
            kubeconfig.write_text(kubeconfig.read_text().replace(cluster.server, f"https://127.0.0.1:{port}"))
            process.start()
            yield gateway
        finally:
            link.close()
            await end_tasks(tasks)
