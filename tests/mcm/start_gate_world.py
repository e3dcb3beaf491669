"""API servers that misbehave, what guards instances from them, and made-up time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import UTC, datetime
from pathlib import Path

import orjson

from kplane.controlplane_operator.pki.primitives import create_authority, issue_serving
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.overview import ClusterSummary, Overview
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ProcessRuntime

PACE = GatePace(look=0.05, timeout=0.5, fresh=0.0, grace=0.5, retry_initial=0.05, retry_maximum=0.2, stable=60.0)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"


def lease(holder: str, *, renewed: datetime | None = None, seconds: int = 1) -> bytes:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": (renewed or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    body = orjson.dumps(
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": spec}
    )
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class FaultServer:
    """An API server that answers each request with the same bytes; None: with nothing."""

    def __init__(self, directory: Path) -> None:
        self.authority = create_authority("fault")
        self.answer: bytes | None = NOT_FOUND
        self.after_seconds = 0.0
        self.endless = False
        self.asked = 0
        self.port = 0
        pair = issue_serving(self.authority, common_name="fault", hosts=("127.0.0.1",))
        (directory / "pair.pem").write_bytes(pair.certificate + pair.key)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(directory / "pair.pem")
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig(server=f"https://127.0.0.1:{self.port}", token="t", ca_data=self.authority.certificate)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                await asyncio.sleep(self.after_seconds)
                writer.write(self.answer or b"")
                while self.endless:
                    writer.write(b"[" * 65536)
                    await writer.drain()


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[str, Reason, str]] = []

    async def announce(self, cluster: Cluster, *, version: str | None) -> None: ...

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        self.told.append((name, reason, message))

    def report_failure(self, cluster: Cluster, message: str) -> None: ...

    async def end(self, name: str) -> None: ...

    def last(self, name: str = "a") -> tuple[Reason, str]:
        return next(((reason, message) for who, reason, message in reversed(self.told) if who == name), ("", ""))  # type: ignore[return-value]


class World:
    def __init__(self, runtime: ProcessRuntime, directory: Path, *, pace: GatePace = PACE) -> None:
        self.heard = Heard()
        self.server = FaultServer(directory)
        self.budget = StartBudget(at_once=1, longest_seconds=pace.timeout, stagger_seconds=0.0)
        self.runtime = runtime
        self.instances = Instances(runtime, observer=self.heard, gate_pace=pace, budget=self.budget)
        self.clusters = Clusters(awares=[self.instances], retry_initial_seconds=0.1)
        self.overview = Overview(self.clusters, instances=self.instances)

    def summary(self, name: str = "a") -> ClusterSummary:
        return next(found for found in self.overview.summaries() if found.name == name)

    async def add(self, name: str = "a", config: ClusterConfig | None = None) -> None:
        await self.clusters.add_or_replace(Cluster(name, config=config or self.server.config))


class Time:
    """Made-up time of guards, and how often they have looked at an API server."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answered = 0
        self.unanswered = 0
