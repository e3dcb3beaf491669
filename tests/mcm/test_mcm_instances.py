"""Instances follow engagements: what runs, and what is told of it. Their program here is a script that only waits."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mcm.configuration import component_name
from mcm.errors import RegistrationWithdrawn
from mcm.fleet import Fleet
from mcm.instances import Instances, remove_leftovers
from mcm.metrics import Metrics
from mcm.report import Reason
from mcm.settings import Listen
from mcm.start_budget import StartBudget
from mcm.status import serve_status
from provider import LOCAL, Cluster, ClusterConfig, Clusters
from workloads import Pace, ProcessRuntime

Eventually = Callable[..., Any]


def cluster(name: str, *, server: str = "https://127.0.0.1:1", token: str = "t", **more: Any) -> Cluster:
    return Cluster(name, config=ClusterConfig(server=server, token=token), **more)


class Heard:
    """Stands for the registrations: writes down what they would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.refuses = False

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        self.told.append(("announced", cluster.config.server))
        if self.refuses:
            raise RegistrationWithdrawn("not wanted any more")

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        if self.told[-1][0] != reason:
            self.told.append((reason, ""))

    def say_failure(self, cluster: Cluster, message: str) -> None:
        self.told.append(("failed", message))

    async def end(self, name: str) -> None:
        self.told.append(("ended", ""))


class World:
    """Clusters, instances and their runtime, put together as in mcm."""

    def __init__(self, directory: Path, runtime: ProcessRuntime) -> None:
        self.directory = directory
        self.runtime = runtime
        self.witness = Heard()
        self.instances = Instances(runtime, witness=self.witness, budget=StartBudget(longest_seconds=0.05))
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


def program(directory: Path, script: str, *, name: str = "kube-controller-manager") -> None:
    path = directory / name
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


async def test_the_management_cluster_is_none_of_the_fleet(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster(LOCAL))
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: world.pid("a"))
    assert [found.name for found in world.fleet.summaries()] == ["a"]


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


async def test_each_configuration_is_told_from_the_others(world: World, eventually: Eventually) -> None:
    def told() -> tuple[int | None, str | None]:
        found = world.fleet.summaries()[0]
        return found.generation, found.configuration

    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Core"}))
    generation, configuration = await eventually(told, lambda found: found[1] is not None)
    await world.clusters.add_or_replace(cluster("a", token="renewed", attributes={"profile": "Core"}))
    await eventually(lambda: world.file("a", "token").read_bytes() == b"renewed")
    assert told() == (generation, configuration)
    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Full"}))
    later = await eventually(told, lambda found: found[1] not in {None, configuration})
    assert later[0] > generation


async def test_edits_in_a_row_come_to_one_restart_and_to_none_where_the_last_one_undoes_them(
    world: World, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"first"}))
    pid = await eventually(lambda: world.pid("a"))
    for key in (b"second", b"third", b"first"):
        await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": key}))
    await eventually(lambda: "goes on" in caplog.text)
    assert world.pid("a") == pid
    for key in (b"second", b"third"):
        await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": key}))
    await eventually(lambda: "has the changed configuration" in caplog.text)
    assert world.pid("a") not in {None, pid}
    assert caplog.text.count("has the changed configuration") == 1
    assert world.file("a", "sa.key").read_bytes() == b"third"


async def test_what_cannot_be_started_is_told_and_disturbs_no_other(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await world.clusters.add_or_replace(cluster("good"))
    await eventually(lambda: world.pid("good"))

    def told() -> dict[str, Any]:
        return {found.name: found for found in world.fleet.summaries()}

    await eventually(lambda: told()["bad"].message, lambda message: "'Tiny' is not known" in message)
    assert told()["bad"].state == "Pending"
    assert told()["bad"].profile == "Tiny"


async def test_an_instance_out_of_skew_is_refused_and_told_alone(
    world: World, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    program(world.directory, '[ "$1" = --version ] && echo Kubernetes v1.36.3 || exec sleep 1000')
    for minor in (34, 35, 36, 37, 38):
        await world.clusters.add_or_replace(cluster(f"v{minor}", attributes={"version": f"1.{minor}"}))
    await world.clusters.add_or_replace(cluster("unknown", attributes={"version": ""}))
    for name in ("v36", "v37", "unknown"):
        await eventually(lambda name=name: world.pid(name))

    def told() -> dict[str, Any]:
        return {found.name: found for found in world.fleet.summaries()}

    for name in ("v34", "v35", "v38"):
        sentence = await eventually(lambda name=name: told()[name].message, lambda message: "Kubernetes 1." in message)
        number = name.removeprefix("v")
        assert f"needs kube-controller-manager 1.{number} or 1.{int(number) - 1}, and there is 1.36.3 only" in sentence
        assert (told()[name].state, told()[name].pid) == ("Pending", None)
        assert f"registration {name}: its API server is Kubernetes" in caplog.text
    # It is brought to a version that fits, and no other one was touched for that.
    pids = {name: world.pid(name) for name in ("v36", "v37", "unknown")}
    await world.clusters.add_or_replace(cluster("v35", attributes={"version": "1.36"}))
    await eventually(lambda: world.pid("v35"))
    assert {name: world.pid(name) for name in pids} == pids


async def test_an_instance_ends_when_its_api_server_gets_out_of_skew(world: World, eventually: Eventually) -> None:
    program(world.directory, '[ "$1" = --version ] && echo Kubernetes v1.36.3 || exec sleep 1000')
    await world.clusters.add_or_replace(cluster("a", attributes={"version": "1.37"}))
    pid = await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", attributes={"version": "1.38"}))
    await eventually(lambda: world.fleet.summaries()[0].message, lambda message: "there is 1.36.3 only" in message)
    assert not alive(pid)


async def test_the_last_error_is_told(world: World, eventually: Eventually) -> None:
    program(world.directory, "exit 3")
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(world.fleet.summaries, lambda found: found and "exit code 3" in found[0].last_error)


async def test_why_an_instance_ends_is_told_also_while_it_starts_again(world: World, eventually: Eventually) -> None:
    program(world.directory, "echo API server is not healthy >&2; exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    [summary] = await eventually(world.fleet.summaries, lambda found: found and found[0].restarts > 2)
    assert "exit code 1" in summary.message
    assert "API server is not healthy" in summary.message
    program(world.directory, "exec sleep 1000")
    [summary] = await eventually(world.fleet.summaries, lambda found: found[0].state == "Starting", timeout=20.0)
    assert "API server is not healthy" in summary.message


async def test_the_witness_hears_of_an_instance_before_its_start_and_after_its_end(
    world: World, eventually: Eventually
) -> None:
    pids: list[int | None] = []

    async def look(cluster: Cluster, *, version: str | None = None) -> None:
        pids.append(world.pid(cluster.name))
        await Heard.announce(world.witness, cluster, version=version)

    world.witness.announce = look  # type: ignore[method-assign]
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: ("Starting", "") in world.witness.told)
    await world.clusters.add_or_replace(cluster("a", server="https://127.0.0.1:2"))
    await eventually(lambda: world.witness.told.count(("Starting", "")) == 2)
    await world.clusters.remove("a")
    assert world.witness.told == [
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
    assert [what for what, _ in world.witness.told][:5] == ["announced", "Starting", "CannotEnd", "ended", "announced"]


async def test_what_is_not_wanted_any_more_does_not_start(world: World, eventually: Eventually) -> None:
    world.witness.refuses = True
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: ("ended", "") in world.witness.told)
    await world.clusters.remove("a")
    assert {what for what, _ in world.witness.told} == {"announced", "ended"}


async def test_a_description_that_makes_no_instance_is_not_announced(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await eventually(lambda: ("ended", "") in world.witness.told)
    await world.clusters.remove("bad")
    [(what, why), *_] = world.witness.told
    assert what == "failed"
    assert "'Tiny' is not known" in why
    assert "announced" not in {what for what, _ in world.witness.told}


async def test_restarts_of_one_that_ends_by_itself_are_no_transitions(world: World, eventually: Eventually) -> None:
    program(world.directory, "exit 1")
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(world.fleet.summaries, lambda found: found and found[0].restarts > 2)
    reasons = [reason for reason, _ in world.witness.told]
    assert reasons[:3] == ["announced", "Starting", "Backoff"]
    assert set(reasons[3:]) <= {"Backoff"}


BOTH = {"services": "Controllers,Scheduler"}


async def test_each_service_has_a_process_and_both_end_together(world: World, eventually: Eventually) -> None:
    program(world.directory, "exec sleep 1000", name="kube-scheduler")
    await world.clusters.add_or_replace(cluster("a", attributes=BOTH))
    [summary] = await eventually(world.fleet.summaries, lambda found: found and len(found[0].pids) == 2)
    assert all(alive(pid) for pid in summary.pids)
    assert dict(summary.others).keys() == {"kube-scheduler"}
    assert 'mcm_instance_pss_bytes{cluster="a"}' in (await world.metrics.render()).decode()
    await world.clusters.add_or_replace(cluster("a", attributes={"services": "Scheduler"}))
    [alone] = await eventually(world.fleet.summaries, lambda found: found and not found[0].others and found[0].pid)
    assert not any(alive(pid) for pid in summary.pids)
    assert world.runtime.names() == ["ksc-a"]
    await world.clusters.remove("a")
    assert not alive(alone.pid)
    assert not world.runtime.names()
    assert [what for what, _ in world.witness.told].count("ended") == 2


async def test_what_is_wrong_with_the_scheduler_is_told_though_controllers_run(
    world: World, eventually: Eventually
) -> None:
    program(world.directory, "echo no such profile >&2; exit 1", name="kube-scheduler")
    await world.clusters.add_or_replace(cluster("a", attributes=BOTH))
    [summary] = await eventually(world.fleet.summaries, lambda found: found and found[0].restarts > 1)
    assert world.witness.told[-1] == ("Backoff", "")
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


async def test_readiness_depends_on_the_registrations_only(world: World, eventually: Eventually) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    synced = [False]
    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Core"}))
    pid = await eventually(lambda: world.pid("a"))
    async with (
        serve_status(
            Listen("127.0.0.1", port),
            fleet=world.fleet,
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


async def test_what_an_earlier_run_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "state" / "kcm-a" / "files"
    left.mkdir(parents=True)
    (left / "sa.key").write_text("secret")
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path]) as runtime:
        await remove_leftovers(runtime)
        assert not runtime.names()
    assert not left.parent.exists()
