"""/readyz follows the operator's connection to the management cluster. /healthz does not: a restart would not help."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kplane.api.configuration import HostPort
from kplane.binaries.upstreams import ETCD
from kplane.controlplane_operator.app import run_operator
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd import health, versions
from kplane.controlplane_operator.watch import informers
from kplane.data.connection import Connection
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.workloads import ProcessRuntime

from .line import Line

pytestmark = pytest.mark.integration


@pytest.fixture
async def line(api_server: Handle) -> AsyncIterator[Line]:
    proxy = Line(ClusterConfig.load(api_server.operator_kubeconfig).server)
    await proxy.lay()
    yield proxy
    proxy.end()


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Event that holds the operator before its first reconciliation, while its watches run."""
    event = asyncio.Event()
    enter = ProcessRuntime.__aenter__

    async def entered(self: ProcessRuntime) -> ProcessRuntime:
        await event.wait()
        return await enter(self)

    monkeypatch.setattr(ProcessRuntime, "__aenter__", entered)
    return event


@pytest.fixture
async def url(
    api_server: Handle, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_port: Callable[[], int]
) -> AsyncIterator[str]:
    """URL of an operator behind the TCP proxy, whose watches may fail for two seconds."""
    monkeypatch.setattr(informers, "_STALE_SECONDS", 2.0)
    config = replace(ClusterConfig.load(api_server.operator_kubeconfig), server=f"https://127.0.0.1:{line.port}")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config.to_kubeconfig()))
    stop, port = asyncio.Event(), hold_port()
    settings = OperatorConfig(
        kubeconfig=kubeconfig,
        state_dir=tmp_path / "state",
        programs_dir=api_server.programs,
        listen=HostPort("127.0.0.1", port),
        shared_etcd_endpoint=api_server.tenants_etcd.endpoint,
        shared_etcd_credentials=api_server.tenants_etcd_credentials,
        # The operator outlasts the outages of these tests.
        leader_elect_lease_seconds=30,
        leader_elect_renew_deadline_seconds=25,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(run_operator(settings, stop=stop))
        yield f"http://127.0.0.1:{port}"
        stop.set()


async def ask(url: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}{path}") as answer:
        return answer.status, await answer.text()


async def test_readyz_fails_while_management_cluster_is_unreachable(url: str, line: Line, eventually: Any) -> None:
    async def readyz() -> tuple[int, str]:
        return await ask(url, "/readyz?verbose")

    def is_ready_leader(answer: tuple[int, str]) -> bool:
        # A standby is ready before its election. It knows no Secrets, and the missing ones would be the problem.
        return answer[0] == 200 and "[+]leader-election ok: leader" in answer[1]

    assert "[+]caches ok" in (await eventually(readyz, is_ready_leader))[1]
    line.cut()

    def is_cut_off(answer: tuple[int, str]) -> bool:
        parts = (
            "[-]caches failed: the controlplanes of the management cluster could not be watched since ",
            "[+]shared-etcd ok",
        )
        return answer[0] == 500 and all(part in answer[1] for part in parts)

    await eventually(readyz, is_cut_off)
    assert await ask(url, "/healthz") == (200, "ok")
    await line.lay()
    await eventually(readyz, lambda answer: answer[0] == 200, timeout=120.0)


async def test_readyz_fails_until_operator_starts_to_reconcile(begin: asyncio.Event, url: str, eventually: Any) -> None:
    async def readyz() -> tuple[int, str]:
        return await ask(url, "/readyz?verbose")

    status, text = await eventually(readyz, lambda answer: "[+]leader-election ok: leader" in answer[1])
    assert status == 500
    assert "[-]caches failed: the Secrets of namespace kplane-system were not listed yet" in text
    begin.set()
    await eventually(readyz, lambda answer: answer[0] == 200)


async def test_repeated_readyz_requests_send_no_requests_to_etcd(
    url: str, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def readyz(_: int = 0) -> tuple[int, str]:
        return await ask(url, "/readyz?verbose")

    monkeypatch.setattr(health, "_PERIOD_SECONDS", 3600.0)
    paths: list[str] = []
    call = Connection.call

    async def counted(self: Connection, method: Any, request: Any, *, timeout_seconds: float) -> Any:
        paths.append(method.path)
        return await call(self, method, request, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(Connection, "call", counted)
    # The operator has checked the etcd, and its next check is an hour away.
    await eventually(readyz, lambda answer: answer[0] == 200 and len(paths) >= 2)
    paths.clear()
    answers = await asyncio.gather(*(readyz(number) for number in range(40)))
    assert {status for status, _ in answers} == {200}
    assert all("[+]shared-etcd ok" in text for _, text in answers)
    assert paths == []


async def test_etcd_with_known_auth_bypasses_gets_no_new_tenant(
    url: str, api_server: Handle, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor, patch = (int(part) for part in ETCD.version.split("."))
    monkeypatch.setitem(versions._FIXED, (major, minor), patch + 1)
    refusal = f"is refused: version {ETCD.version} has known bypasses of access control; use "

    async def readyz() -> tuple[int, str]:
        return await ask(url, "/readyz?verbose")

    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:

        async def ready() -> tuple[str, str]:
            conditions = (await client.get(CONTROL_PLANES, "refused"))["status"]["conditions"]
            return next((item["reason"], item["message"]) for item in conditions if item["type"] == "Ready")

        async def gone() -> bool:
            try:
                return not await client.get(CONTROL_PLANES, "refused")
            except NotFound:
                return True

        await client.create(CONTROL_PLANES, {"metadata": {"name": "refused"}, "spec": {"deletionPolicy": "Destroy"}})
        _, message = await eventually(ready, lambda found: found[0] == "EtcdRefused")
        assert refusal in message
        assert refusal in (await eventually(readyz, lambda answer: answer[0] == 500))[1]

        # This stands for an upgrade of the etcd.
        monkeypatch.setitem(versions._FIXED, (major, minor), patch)
        await eventually(ready, lambda found: found[0] != "EtcdRefused")
        await eventually(readyz, lambda answer: answer[0] == 200)
        await client.delete(CONTROL_PLANES, "refused")
        await eventually(gone, timeout=120.0)
