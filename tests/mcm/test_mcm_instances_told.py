"""Reports of instances to the observer, in metrics and on the HTTP pages of mcm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from kplane.api.configuration import HostPort
from kplane.mcm.describe.programs import Programs
from kplane.mcm.serving.server import serve_status
from kplane.mcm.source.debounce import effective
from kplane.provider import Cluster
from kplane.workloads import RuntimeFailure

from .instances_world import Heard, World, alive, cluster, program

Eventually = Callable[..., Any]


async def test_summary_has_the_last_error(world: World, eventually: Eventually) -> None:
    program(world.directory, "exit 3")
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(world.overview.summaries, lambda found: found and "exit code 3" in found[0].last_error)


async def test_exit_message_stays_in_the_summary_during_the_next_start(world: World, eventually: Eventually) -> None:
    program(world.directory, "echo API server is not healthy >&2; exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    [summary] = await eventually(world.overview.summaries, lambda found: found and found[0].restarts > 2)
    assert "exit code 1" in summary.message
    assert "API server is not healthy" in summary.message
    program(world.directory)
    [summary] = await eventually(world.overview.summaries, lambda found: found[0].state == "Starting", timeout=20.0)
    assert "API server is not healthy" in summary.message


async def test_observer_hears_before_each_start_and_after_each_end(world: World, eventually: Eventually) -> None:
    pids: list[int | None] = []

    async def look(cluster: Cluster, *, version: str | None = None) -> None:
        pids.append(world.pid(cluster.name))
        await Heard.announce(world.observer, cluster, version=version)

    world.observer.announce = look  # type: ignore[method-assign]
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: ("Starting", "") in world.observer.told)
    await world.clusters.add_or_replace(cluster("a", server="https://127.0.0.1:2"))
    await eventually(lambda: world.observer.told.count(("Starting", "")) == 2)
    await world.clusters.remove("a")
    assert world.observer.told == [
        ("announced", "https://127.0.0.1:1"),
        ("Starting", ""),
        ("ended", ""),
        ("announced", "https://127.0.0.1:2"),
        ("Starting", ""),
        ("ended", ""),
    ]
    assert pids == [None, None]


async def test_end_is_reported_only_after_a_retried_cleanup(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    pid = await eventually(lambda: world.pid("a"))

    async def fail(_: str) -> None:
        monkeypatch.undo()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(world.runtime, "delete", fail)
    await world.clusters.add_or_replace(cluster("a", server="https://127.0.0.1:2"))
    await eventually(lambda: world.pid("a"), lambda found: found not in {None, pid})
    assert not alive(pid)
    assert [report for report, _ in world.observer.told][:5] == [
        "announced",
        "Starting",
        "StopFailed",
        "ended",
        "announced",
    ]


async def test_instance_whose_announcement_is_refused_does_not_start(world: World, eventually: Eventually) -> None:
    world.observer.refuses = True
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: ("ended", "") in world.observer.told)
    await world.clusters.remove("a")
    assert {report for report, _ in world.observer.told} == {"announced", "ended"}


async def test_invalid_description_is_reported_but_not_announced(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await eventually(lambda: ("ended", "") in world.observer.told)
    await world.clusters.remove("bad")
    [(report, message), *_] = world.observer.told
    assert report == "failed"
    assert "unknown controllers.profile 'Tiny'" in message
    assert "announced" not in {report for report, _ in world.observer.told}


async def test_restarts_of_a_crashing_instance_are_no_transitions(world: World, eventually: Eventually) -> None:
    program(world.directory, "exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(world.overview.summaries, lambda found: found and found[0].restarts > 2)
    reasons = [reason for reason, _ in world.observer.told]
    assert reasons[:3] == ["announced", "Starting", "Backoff"]
    assert set(reasons[3:]) <= {"Backoff"}


BOTH = {"services": "Controllers,Scheduler"}


async def test_each_service_has_a_process_and_both_end_together(world: World, eventually: Eventually) -> None:
    program(world.directory, name="kube-scheduler")
    await world.clusters.add_or_replace(cluster("a", attributes=BOTH))
    [summary] = await eventually(world.overview.summaries, lambda found: found and len(found[0].pids) == 2)
    assert all(alive(pid) for pid in summary.pids)
    assert dict(summary.others).keys() == {"kube-scheduler"}
    assert 'mcm_instance_pss_bytes{cluster="a"}' in (await world.metrics.render()).decode()
    await world.clusters.add_or_replace(cluster("a", attributes={"services": "Scheduler"}))
    [last_summary] = await eventually(
        world.overview.summaries, lambda found: found and not found[0].others and found[0].pid
    )
    assert not any(alive(pid) for pid in summary.pids)
    assert world.runtime.names() == ["ksc-a"]
    await world.clusters.remove("a")
    assert not alive(last_summary.pid)
    assert not world.runtime.names()
    assert [report for report, _ in world.observer.told].count("ended") == 2


async def serve(world: World, services: str) -> None:
    """Add or replace the cluster `a` with these services, in the description that mcm makes."""
    description = cluster("a", attributes={"services": services})
    await world.clusters.add_or_replace(await effective(description, programs=Programs(runtime=world.runtime)))


async def test_added_or_removed_service_does_not_restart_the_other(world: World, eventually: Eventually) -> None:
    program(world.directory, name="kube-scheduler")
    await serve(world, "Controllers")
    controllers = await eventually(lambda: world.pid("a"))
    await serve(world, "Controllers,Scheduler")
    [summary] = await eventually(world.overview.summaries, lambda found: len(found[0].pids) == 2)
    assert summary.pid == controllers
    scheduler = dict(summary.others)["kube-scheduler"]
    # Each instance follows changes of the cluster by itself.
    description = cluster("a", token="second", attributes={"services": "Controllers,Scheduler"})
    await world.clusters.add_or_replace(await effective(description, programs=Programs(runtime=world.runtime)))
    files = [world.file("a", "token"), world.directory / "state/ksc-a/files/token"]
    await eventually(lambda: [path.read_bytes() for path in files] == [b"second"] * 2)
    assert [world.runtime.state(name).pid for name in ("kcm-a", "ksc-a")] == [controllers, scheduler]

    await serve(world, "Controllers")
    await eventually(lambda: world.runtime.names() == ["kcm-a"])
    assert not alive(scheduler)
    assert world.pid("a") == controllers
    await eventually(lambda: [report for report, _ in world.observer.told].count("announced") == 3)

    # In an exchange of services, the controllers end before the scheduler is announced.
    alive_at_announcement = []
    announce = world.observer.announce

    async def note(*args: Any, **more: Any) -> None:
        alive_at_announcement.append(alive(controllers))
        await announce(*args, **more)

    world.observer.announce = note
    await serve(world, "Scheduler")
    await eventually(lambda: world.runtime.names() == ["ksc-a"])
    assert alive_at_announcement == [False]
    await world.clusters.remove("a")
    assert not world.runtime.names()
    assert [report for report, _ in world.observer.told].count("ended") == 1


async def test_failure_to_add_a_service_is_reported_and_retried(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(world.directory, name="kube-scheduler")
    await serve(world, "Controllers")
    controllers = await eventually(lambda: world.pid("a"))
    failures = iter([RuntimeFailure("no port is free")])
    reserve = world.runtime.reserve

    async def refuse_one(name: str, **more: Any) -> Any:
        if name == "ksc-a":
            for failure in failures:
                raise failure
        return await reserve(name, **more)

    monkeypatch.setattr(world.runtime, "reserve", refuse_one)
    await serve(world, "Controllers,Scheduler")
    await eventually(lambda: ("failed", "no port is free") in world.observer.told)
    assert alive(controllers)
    await eventually(lambda: world.runtime.state("ksc-a").pid)
    assert world.pid("a") == controllers


async def test_scheduler_failure_is_reported_while_controllers_run(world: World, eventually: Eventually) -> None:
    program(world.directory, "echo no such profile >&2; exit 1", name="kube-scheduler")
    await world.clusters.add_or_replace(cluster("a", attributes=BOTH))
    [summary] = await eventually(world.overview.summaries, lambda found: found and found[0].restarts > 1)
    assert world.observer.told[-1] == ("Backoff", "")
    assert summary.pid is not None
    assert alive(summary.pid)


async def test_metric_series_of_a_cluster_end_with_it(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    await world.clusters.add_or_replace(cluster("b"))
    await eventually(lambda: world.pid("a") and world.pid("b"))
    metrics = (await world.metrics.render()).decode()
    assert 'mcm_instance_up{cluster="a"} 0.0' in metrics
    assert 'mcm_instance_restarts_total{cluster="b"} 0.0' in metrics
    assert 'mcm_instance_pss_bytes{cluster="b"}' in metrics
    assert 'mcm_clusters{state="Starting"} 2.0' in metrics
    assert 'mcm_clusters{state="Ready"} 0.0' in metrics
    assert "process_resident_memory_bytes" in metrics
    await world.clusters.remove("b")
    later_metrics = (await world.metrics.render()).decode()
    assert 'cluster="a"' in later_metrics
    assert 'cluster="b"' not in later_metrics
    assert 'mcm_clusters{state="Starting"} 1.0' in later_metrics


async def test_readiness_depends_only_on_synced_sources(
    world: World, hold_port: Callable[[], int], eventually: Eventually
) -> None:
    port, synced = hold_port(), [False]
    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Core"}))
    pid = await eventually(lambda: world.pid("a"))
    async with (
        serve_status(
            HostPort("127.0.0.1", port),
            overview=world.overview,
            metrics=world.metrics,
            sources="endpoints",
            synced=lambda: synced[0],
        ),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def get(path: str, **headers: str) -> tuple[int, str]:
            async with session.get(path, headers=headers) as answer:
                return answer.status, await answer.text()

        assert await get("/healthz") == (200, "ok\n")
        assert (await get("/readyz"))[0] == 503
        status, text = await get("/readyz?verbose")
        assert status == 503
        assert "[-]endpoints failed: the endpoints have not been read yet" in text
        synced[0] = True
        assert await get("/readyz") == (200, "ok\n")
        status, text = await get("/readyz?verbose")
        assert status == 200
        assert "[-]cluster/a Starting" in text
        assert "mcm_clusters" in (await get("/metrics"))[1]
        status, text = await get("/clusters")
        summary = json.loads(text)["clusters"]["a"]
        for table in (await get("/clusters?format=table"), await get("/clusters", Accept="text/plain")):
            assert table[1].splitlines()[1].split()[:2] == ["a", "Starting"]
        assert (await get("/clusters?format=xml"))[0] == 400
    assert summary.pop("pssBytes") > 0
    assert "message" in summary
    del summary["message"]
    assert summary == {
        "state": "Starting",
        "profile": "Core",
        "server": "https://127.0.0.1:1",
        "version": None,
        "generation": 1,
        "configuration": summary["configuration"],
        "pid": pid,
        "restarts": 0,
        "exits": {},
        "lastError": summary["lastError"],
    }
