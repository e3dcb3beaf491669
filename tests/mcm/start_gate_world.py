"""Faulty API servers, a fleet whose start gates protect its instances from them, and simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from kplane.mcm.fleet import Instances
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.overview import ClusterSummary, Overview
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ProcessRuntime

PACE = GatePace(look=0.05, timeout=0.5, retry=0.05, grace=0.5, retry_initial=0.05, retry_maximum=0.2, stable=60.0)


def answer(status: str, body: dict[str, Any]) -> bytes:
    content = orjson.dumps(body)
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content)


def guarded(leases: Leases, *, policy: str = "Ignore") -> None:
    """Add a webhook on Leases and a webhook on Pods to `leases`."""
    webhook = {"name": "guard.example.com", "failurePolicy": policy, "timeoutSeconds": 10}
    rules = (
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
        {"apiGroups": [""], "resources": ["pods"]},
    )
    leases.configurations = {
        "validatingwebhookconfigurations": [
            {
                "metadata": {"name": f"guard-{number}"},
                "webhooks": [{**webhook, "rules": [{**rule, "operations": ["*"]}]}],
            }
            for number, rule in enumerate(rules)
        ],
        "mutatingwebhookconfigurations": [],
    }


@contextlib.asynccontextmanager
async def released(lease: TenantLease) -> AsyncIterator[TenantLease]:
    """Release a Lease at the end of the block."""
    try:
        yield lease
    finally:
        await lease.release()


class Leases:
    """The Leases of an API server, by name."""

    def __init__(self) -> None:
        self.specs: dict[str, dict[str, Any]] = {}
        self.forbidden: frozenset[str] = frozenset()
        """HTTP methods that the API server refuses."""
        self.refusal: bytes | None = None
        """Answer to each write, for example the refusal of a webhook."""
        self.configurations: dict[str, list[dict[str, Any]]] = {}
        """Webhook configurations by the plural of their kind."""
        self._versions = itertools.count(1)
        self._version: dict[str, str] = {}

    def hold(self, holder: str, *, seconds: Any = 1, name: str = "kube-controller-manager", **more: Any) -> None:
        """Write a Lease as its holder does, renewed now."""
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.specs[name] = {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": renewed,
            "acquireTime": renewed,
            **more,
        }
        self._version[name] = str(next(self._versions))

    def delete(self, name: str) -> None:
        del self.specs[name], self._version[name]

    def holder(self, name: str = "kube-controller-manager") -> str:
        return str(self.specs.get(name, {}).get("holderIdentity", ""))

    def renewed(self, name: str = "kube-controller-manager") -> str:
        return str(self.specs.get(name, {}).get("renewTime", ""))

    def serve(self, method: str, path: str, body: bytes) -> bytes:
        name = path.partition("?")[0].rpartition("/")[2]
        if method in self.forbidden:
            return answer("403 Forbidden", {"kind": "Status", "reason": "Forbidden", "message": "you may not"})
        if method == "GET" and name in self.configurations:
            return answer("200 OK", {"metadata": {"resourceVersion": "1"}, "items": self.configurations[name]})
        if method != "GET" and self.refusal is not None:
            return self.refusal
        if method == "GET":
            return self._read(name) if name in self.specs else answer("404 Not Found", {})
        sent = orjson.loads(body)
        if sent["metadata"].get("resourceVersion") != self._version.get(name):
            return answer("409 Conflict", {"kind": "Status", "reason": "Conflict"})
        self.specs[name], self._version[name] = sent["spec"], str(next(self._versions))
        return self._read(name)

    def _read(self, name: str) -> bytes:
        metadata = {"name": name, "namespace": "kube-system", "resourceVersion": self._version[name]}
        head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        return answer("200 OK", {**head, "spec": self.specs[name]})


class FaultServer:
    """An API server that stores Leases, or answers each request with the same bytes (None: no answer)."""

    def __init__(self, directory: Path) -> None:
        self.authority = create_authority("fault")
        self.leases = Leases()
        self.answer: bytes | Leases | None = self.leases
        self.after_seconds = 0.0
        self.write_after_seconds = 0.0
        """Additional delay of each write, such as that of a webhook."""
        self.loses_answers = False
        """Whether connections break after a request was carried out."""
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
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path = head.split()[:2]
                length = re.search(r"(?i)^content-length: *(\d+)", head, re.MULTILINE)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.asked += 1
                await asyncio.sleep(self.after_seconds + (self.write_after_seconds if method != "GET" else 0.0))
                reply = self.answer
                if self.loses_answers:
                    if isinstance(reply, Leases):
                        reply.serve(method, path, body)
                    writer.transport.abort()
                    return
                writer.write(reply.serve(method, path, body) if isinstance(reply, Leases) else reply or b"")
                while self.endless:
                    writer.write(b"[" * 65536)
                    await writer.drain()


class Heard:
    def __init__(self) -> None:
        self.told: list[tuple[str, Reason, str]] = []

    async def announce(self, cluster: Cluster, *, version: str | None) -> None: ...

    async def confirm(self, cluster: Cluster) -> None: ...

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
        return next(summary for summary in self.overview.summaries() if summary.name == name)

    async def add(self, name: str = "a", config: ClusterConfig | None = None) -> None:
        await self.clusters.add_or_replace(Cluster(name, config=config or self.server.config))


class Time:
    """Simulated time of start gates, and the number of their looks at an API server."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answered = 0
        self.unanswered = 0
