"""The authority of an API server is exchanged under an instance; its program here is a script that only waits."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.api import KubernetesVersion
from kplane.controlplane_operator.pki.primitives import KeyPair, create_authority, issue_serving
from kplane.mcm.describe.controllers import component_name
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.programs import Programs
from kplane.mcm.instance.start_gate import GuardPace
from kplane.mcm.instance.trust import Trust, follows_authority
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.status.null_reporter import Silence
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Pace, ProcessRuntime

Eventually = Callable[..., Any]
PACE = GuardPace(look=0.05, timeout=1.0, grace=60.0, retry_initial=0.05, retry_maximum=0.2)
OLD, NEW = create_authority("old"), create_authority("new")
BOTH = OLD.certificate + NEW.certificate


class Server:
    """Answers every request with 404, and has a certificate that can be exchanged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.port = 0

    def sign(self, authority: KeyPair) -> None:
        pair = issue_serving(authority, common_name="server", hosts=("127.0.0.1",))
        (self._directory / "pair.pem").write_bytes(pair.certificate + pair.key)
        self._tls.load_cert_chain(self._directory / "pair.pem")

    def config(self, authority: bytes) -> ClusterConfig:
        return ClusterConfig(server=f"https://127.0.0.1:{self.port}", token="t", ca_data=authority)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    found = Server(tmp_path)
    found.sign(OLD)
    async with found.running():
        yield found


async def test_a_process_is_outdated_while_it_may_not_have_read_what_counts(server: Server) -> None:
    now = 0.0
    trust = Trust(now=lambda: now)
    trust.note(OLD.certificate, before=None, after=1)
    trust.note(BOTH, before=1, after=1)
    assert not await trust.outdated(server.config(BOTH), pid=1)
    server.sign(NEW)
    assert await trust.outdated(server.config(BOTH), pid=1)
    assert not await trust.outdated(server.config(BOTH), pid=2)  # it began after that
    now = 299.0
    assert await trust.outdated(server.config(BOTH), pid=1)
    trust.note(NEW.certificate, before=1, after=1)
    now = 311.0
    assert not await trust.outdated(server.config(NEW.certificate), pid=1)


async def test_a_process_that_began_by_itself_knows_what_was_there_then(server: Server) -> None:
    trust = Trust()
    trust.note(OLD.certificate, before=None, after=1)
    trust.note(BOTH, before=1, after=1)
    trust.note(NEW.certificate, before=2, after=2)
    server.sign(NEW)
    assert not await trust.outdated(server.config(NEW.certificate), pid=2)
    server.sign(create_authority("third"))
    assert await trust.outdated(server.config(NEW.certificate), pid=2)


async def test_an_api_server_that_does_not_answer_makes_nothing_outdated(server: Server) -> None:
    trust = Trust()
    trust.note(OLD.certificate, before=None, after=1)
    trust.note(NEW.certificate, before=1, after=1)
    config = ClusterConfig(server="https://127.0.0.1:1", token="t", ca_data=NEW.certificate)
    assert not await trust.outdated(config, pid=1)


@pytest.mark.parametrize(
    ("version", "flags", "follows"),
    [
        ("1.36.0", NO_FLAGS, True),
        ("1.37.2", Flags(("--feature-gates=JobManagedBy=false",)), True),
        ("1.35.9", NO_FLAGS, False),
        (None, NO_FLAGS, False),
        ("1.36.0", Flags(("--feature-gates", "ClientsAllowCARotation=false")), False),
        ("1.36.0", Flags(("--feature-gates=AllBeta=false",)), False),
        ("1.37.0", Flags(("--emulated-version=kube:1.35",)), False),
    ],
)
def test_which_programs_read_it_again(version: str | None, flags: Flags, follows: bool) -> None:
    assert follows_authority(KubernetesVersion.parse(version), flags=flags) is follows


@pytest.mark.parametrize("version", ["1.36.3", "1.35.9"])
async def test_an_exchanged_authority_restarts_only_who_does_not_know_it(
    tmp_path: Path, server: Server, eventually: Eventually, version: str
) -> None:
    program = tmp_path / "kube-controller-manager"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    root = {"ca.crt": b"root"}
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=Pace(restart_base=0.05)) as runtime:
        programs = Programs(runtime=runtime, first=KubernetesVersion.parse(version))
        instances = Instances(
            runtime,
            witness=Silence(registration=None),
            programs=programs,
            guard_pace=PACE,
            budget=StartBudget(longest_seconds=PACE.timeout),
        )
        clusters = Clusters(awares=[instances])

        def pid() -> int | None:
            return runtime.state(component_name("a")).pid

        async def put(authority: bytes) -> None:
            await clusters.add_or_replace(Cluster("a", config=server.config(authority), credentials=root))
            file = tmp_path / "state" / component_name("a") / "files" / "server-ca.crt"
            await eventually(lambda: file.exists() and file.read_bytes() == authority)

        try:
            await put(OLD.certificate)
            first = await eventually(pid)
            await put(BOTH)
            if version == "1.35.9":
                assert await eventually(pid) != first
                return
            assert pid() == first
            server.sign(NEW)
            second = await eventually(pid, lambda found: found not in {first, None})
            await put(NEW.certificate)
            assert pid() == second
        finally:
            await clusters.aclose()
