"""What is told of instances: to the observer, by metrics, and by the pages of mcm."""

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


async def test_the_last_error_is_told(world: World, eventually: Eventually) -> None:
    program(world.directory, "exit 3")
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(world.overview.summaries, lambda found: found and "exit code 3" in found[0].last_error)


async def test_why_an_instance_ends_is_told_also_while_it_starts_again(world: World, eventually: Eventually) -> None:
    program(world.directory, "echo API server is not healthy >&2; exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    [summary] = await eventually(world.overview.summaries, lambda found: found and found[0].restarts > 2)
    assert "exit code 1" in summary.message
    assert "API server is not healthy" in summary.message
    program(world.directory)
    [summary] = await eventually(world.overview.summaries, lambda found: found[0].state == "Starting", timeout=20.0)
    assert "API server is not healthy" in summary.message


async def test_the_witness_hears_of_an_instance_before_its_start_and_after_its_end(
    world: World, eventually: Eventually
) -> None:
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


async def test_the_end_is_confirmed_only_when_nothing_is_left_and_tried_until_then(
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
    assert [what for what, _ in world.observer.told][:5] == [
        "announced",
        "Starting",
        "StopFailed",
        "ended",
        "announced",
    ]


async def test_what_is_not_wanted_any_more_does_not_start(world: World, eventually: Eventually) -> None:
    world.observer.refuses = True
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: ("ended", "") in world.observer.told)
    await world.clusters.remove("a")
    assert {what for what, _ in world.observer.told} == {"announced", "ended"}


async def test_a_description_that_makes_no_instance_is_not_announced(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await eventually(lambda: ("ended", "") in world.observer.told)
    await world.clusters.remove("bad")
    [(what, why), *_] = world.observer.told
    assert what == "failed"
    assert "unknown controllers.profile 'Tiny'" in why
    assert "announced" not in {what for what, _ in world.observer.told}


async def test_restarts_of_one_that_ends_by_itself_are_no_transitions(world: World, eventually: Eventually) -> None:
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
    [alone] = await eventually(world.overview.summaries, lambda found: found and not found[0].others and found[0].pid)
    assert not any(alive(pid) for pid in summary.pids)
    assert world.runtime.names() == ["ksc-a"]
    await world.clusters.remove("a")
    assert not alive(alone.pid)
    assert not world.runtime.names()
    assert [what for what, _ in world.observer.told].count("ended") == 2


async def serve(world: World, services: str) -> None:
    """Have the cluster `a` ask for services, as mcm describes it."""
    described = cluster("a", attributes={"services": services})
    await world.clusters.add_or_replace(await effective(described, programs=Programs(runtime=world.runtime)))


async def test_added_and_removed_services_restart_no_other(world: World, eventually: Eventually) -> None:
    program(world.directory, name="kube-scheduler")
    await serve(world, "Controllers")
    controllers = await eventually(lambda: world.pid("a"))
    await serve(world, "Controllers,Scheduler")
    [both] = await eventually(world.overview.summaries, lambda found: len(found[0].pids) == 2)
    assert both.pid == controllers
    scheduler = dict(both.others)["kube-scheduler"]
    # They follow what changes of the cluster, each by itself.
    described = cluster("a", token="second", attributes={"services": "Controllers,Scheduler"})
    await world.clusters.add_or_replace(await effective(described, programs=Programs(runtime=world.runtime)))
    files = [world.file("a", "token"), world.directory / "state/ksc-a/files/token"]
    await eventually(lambda: [path.read_bytes() for path in files] == [b"second"] * 2)
    assert [world.runtime.state(name).pid for name in ("kcm-a", "ksc-a")] == [controllers, scheduler]

    await serve(world, "Controllers")
    await eventually(lambda: world.runtime.names() == ["kcm-a"])
    assert not alive(scheduler)
    assert world.pid("a") == controllers
    await eventually(lambda: [what for what, _ in world.observer.told].count("announced") == 3)

    # Of an exchange, the former one ends first.
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
    assert [what for what, _ in world.observer.told].count("ended") == 1


async def test_service_that_cannot_be_added_is_told_and_tried_again(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(world.directory, name="kube-scheduler")
    await serve(world, "Controllers")
    controllers = await eventually(lambda: world.pid("a"))
    refused = iter([RuntimeFailure("no port is free")])
    reserve = world.runtime.reserve

    async def refuse_one(name: str, **more: Any) -> Any:
        if name == "ksc-a":
            for failure in refused:
                raise failure
        return await reserve(name, **more)

    monkeypatch.setattr(world.runtime, "reserve", refuse_one)
    await serve(world, "Controllers,Scheduler")
    await eventually(lambda: ("failed", "no port is free") in world.observer.told)
    assert alive(controllers)
    await eventually(lambda: world.runtime.state("ksc-a").pid)
    assert world.pid("a") == controllers


async def test_what_is_wrong_with_the_scheduler_is_told_though_controllers_run(
    world: World, eventually: Eventually
) -> None:
    program(world.directory, "echo no such profile >&2; exit 1", name="kube-scheduler")
    await world.clusters.add_or_replace(cluster("a", attributes=BOTH))
    [summary] = await eventually(world.overview.summaries, lambda found: found and found[0].restarts > 1)
    assert world.observer.told[-1] == ("Backoff", "")
    assert summary.pid is not None
    assert alive(summary.pid)


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


async def test_readiness_depends_on_the_registrations_only(
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
