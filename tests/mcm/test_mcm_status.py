"""What mcm tells about its clusters."""

from __future__ import annotations

import os
import socket

import aiohttp
from prometheus_client import CollectorRegistry, generate_latest

from mcm.instances import Instance
from mcm.metrics import InstanceCollector
from mcm.profiles import Profile
from mcm.status import serve_status
from workloads import Phase


def instance(cluster: str, *, phase: Phase = Phase.READY, pid: int | None = None, message: str = "") -> Instance:
    return Instance(
        cluster=cluster,
        server="https://host",
        profile=Profile.CORE,
        phase=phase,
        pid=pid,
        restarts=2,
        message=message,
    )


def scrape(*instances: Instance) -> str:
    registry = CollectorRegistry()
    registry.register(InstanceCollector(instances))
    return generate_latest(registry).decode()


def test_series_of_a_cluster_end_with_it() -> None:
    both = scrape(instance("a", pid=os.getpid()), instance("b", phase=Phase.BACKOFF))
    assert 'mcm_instance_up{cluster="a"} 1.0' in both
    assert 'mcm_instance_up{cluster="b"} 0.0' in both
    assert 'mcm_instance_restarts_total{cluster="b"} 2.0' in both
    assert 'mcm_instance_pss_bytes{cluster="a"}' in both
    assert 'mcm_clusters{state="Backoff"} 1.0' in both
    assert 'cluster="b"' not in scrape(instance("a"))


def test_memory_of_a_process_that_has_ended_is_left_out() -> None:
    assert "mcm_instance_pss_bytes{" not in scrape(instance("a", pid=2**22 + 1))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def test_a_failing_tenant_never_makes_mcm_unready() -> None:
    port, synced = _free_port(), [False]
    shown = [instance("a", pid=7), instance("b", phase=Phase.ABSENT)]
    async with (
        serve_status(
            "127.0.0.1",
            port=port,
            instances=lambda: shown,
            failure=lambda cluster: "no CA" if cluster == "b" else None,
            synced=lambda: synced[0],
        ),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.get("/readyz") as answer:
            assert answer.status == 503
        synced[0] = True
        async with session.get("/readyz") as answer:
            assert answer.status == 200
            body = await answer.json()
        async with session.get("/metrics") as answer:
            assert "mcm_clusters" in await answer.text()
    assert body["ready"] is True
    assert body["clusters"]["a"]["pid"] == 7
    assert body["clusters"]["b"]["state"] == "Failed"
    assert body["clusters"]["b"]["message"] == "no CA"
