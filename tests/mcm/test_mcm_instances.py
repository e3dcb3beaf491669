"""Instances follow engagements: what runs, and what is told of it. Their program here is a script that only waits."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mcm.configuration import component_name
from mcm.fleet import Fleet
from mcm.instances import Instances, remove_leftovers
from mcm.metrics import Metrics
from mcm.settings import Listen
from mcm.status import serve_status
from provider import Cluster, ClusterConfig, Clusters
from workloads import Pace, ProcessRuntime

Eventually = Callable[..., Any]


def cluster(name: str, *, server: str = "https://127.0.0.1:1", token: str = "t", **more: Any) -> Cluster:
    return Cluster(name, config=ClusterConfig(server=server, token=token), **more)


class World:
    """Clusters, instances and their runtime, put together as in mcm."""

    def __init__(self, directory: Path, runtime: ProcessRuntime) -> None:
        self.directory = directory
        self.runtime = runtime
        self.instances = Instances(runtime)
        self.clusters = Clusters(awares=[self.instances], retry_initial_seconds=0.1)
        self.fleet = Fleet(self.clusters, instances=self.instances)
        self.metrics = Metrics(self.fleet)

    def pid(self, name: str) -> int | None:
        return next((found.pid for found in self.fleet.summaries() if found.name == name), None)

    def file(self, name: str, file: str) -> Path:
        return self.directory / "state" / component_name(name) / "files" / file


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    program(tmp_path, "exec sleep 1000")
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=Pace(restart_base=0.05)) as runtime:
        found = World(tmp_path, runtime)
        try:
            yield found
        finally:
            await found.clusters.aclose()


def program(directory: Path, script: str) -> None:
    path = directory / "kube-controller-manager"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_an_instance_runs_as_long_as_its_cluster_is_engaged(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    pid = await eventually(lambda: world.pid("a"))
    assert alive(pid)
    await world.clusters.remove("a")
    assert not alive(pid)
    assert not world.runtime.names()
    assert not [path for path in (world.directory / "state").iterdir() if path.is_dir()]
    assert world.fleet.summaries() == []


async def test_a_switch_ends_the_old_instance_before_the_new_one_starts(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    old = await eventually(lambda: world.pid("a"))
    seen: list[tuple[int | None, bool]] = []
    world.runtime.subscribe(lambda name: seen.append((world.runtime.state(name).pid, alive(old))))
    await world.clusters.add_or_replace(cluster("a", server="https://127.0.0.1:2"))
    new = await eventually(lambda: world.pid("a"), lambda pid: pid not in {None, old})
    assert [old_alive for pid, old_alive in seen if pid == new]
    assert not [old_alive for pid, old_alive in seen if pid == new and old_alive]


async def test_renewed_credentials_reach_the_same_process(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a", token="first"))
    pid = await eventually(lambda: world.pid("a"))
    assert world.file("a", "token").read_bytes() == b"first"
    await world.clusters.add_or_replace(cluster("a", token="second"))
    await eventually(world.file("a", "token").read_bytes, lambda content: content == b"second")
    assert world.file("a", "token").stat().st_mode & 0o777 == 0o600
    assert world.pid("a") == pid


async def test_a_changed_key_that_is_read_once_restarts_the_instance(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"first"}))
    pid = await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"second"}))
    await eventually(lambda: world.pid("a"), lambda found: found not in {None, pid})
    assert not alive(pid)
    assert world.file("a", "sa.key").read_bytes() == b"second"


async def test_what_cannot_be_started_is_told_and_disturbs_no_other(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await world.clusters.add_or_replace(cluster("good"))
    await eventually(lambda: world.pid("good"))

    def told() -> dict[str, Any]:
        return {found.name: found for found in world.fleet.summaries()}

    await eventually(lambda: told()["bad"].message, lambda message: "'Tiny' is not known" in message)
    assert told()["bad"].state == "Pending"
    assert told()["bad"].profile == "Tiny"


async def test_why_an_instance_ends_is_told_also_while_it_starts_again(world: World, eventually: Eventually) -> None:
    program(world.directory, "echo API server is not healthy >&2; exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    [summary] = await eventually(world.fleet.summaries, lambda found: found and found[0].restarts > 2)
    assert "exit code 1" in summary.message
    assert "API server is not healthy" in summary.message
    program(world.directory, "exec sleep 1000")
    [summary] = await eventually(world.fleet.summaries, lambda found: found[0].state == "Starting", timeout=20.0)
    assert "API server is not healthy" in summary.message


async def test_series_of_a_cluster_end_with_it(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    await world.clusters.add_or_replace(cluster("b"))
    await eventually(lambda: world.pid("a") and world.pid("b"))
    both = (await world.metrics.render()).decode()
    assert 'mcm_instance_up{cluster="a"} 0.0' in both
    assert 'mcm_instance_restarts_total{cluster="b"} 0.0' in both
    assert 'mcm_instance_pss_bytes{cluster="b"}' in both
    assert 'mcm_clusters{state="Starting"} 2.0' in both
    assert 'mcm_clusters{state="Ready"} 0.0' in both
    assert "process_resident_memory_bytes" in both
    await world.clusters.remove("b")
    left = (await world.metrics.render()).decode()
    assert 'cluster="a"' in left
    assert 'cluster="b"' not in left
    assert 'mcm_clusters{state="Starting"} 1.0' in left


async def test_readiness_depends_on_the_registrations_only(world: World, eventually: Eventually) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    synced = [False]
    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Core"}))
    pid = await eventually(lambda: world.pid("a"))
    async with (
        serve_status(Listen("127.0.0.1", port), fleet=world.fleet, synced=lambda: synced[0]),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.get("/readyz") as answer:
            assert answer.status == 503
        synced[0] = True
        async with session.get("/readyz") as answer:
            assert answer.status == 200
            summary = (await answer.json())["clusters"]["a"]
        async with session.get("/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert "mcm_clusters" in await answer.text()
    assert "message" in summary
    del summary["message"]
    assert summary == {
        "state": "Starting",
        "profile": "Core",
        "server": "https://127.0.0.1:1",
        "pid": pid,
        "restarts": 0,
    }


async def test_what_an_earlier_run_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "state" / "kcm-a" / "files"
    left.mkdir(parents=True)
    (left / "sa.key").write_text("secret")
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path]) as runtime:
        await remove_leftovers(runtime)
        assert not runtime.names()
    assert not left.parent.exists()
