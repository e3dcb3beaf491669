"""Instances follow engagements: their start, restart and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kplane.provider import LOCAL
from kplane.workloads import Component, RuntimeFailure

from .instances_world import World, alive, cluster, program

Eventually = Callable[..., Any]


async def test_instance_runs_while_its_cluster_is_engaged(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    pid = await eventually(lambda: world.pid("a"))
    assert alive(pid)
    await world.clusters.remove("a")
    assert not alive(pid)
    assert not world.runtime.names()
    assert not [path for path in (world.directory / "state").iterdir() if path.is_dir()]
    assert world.overview.summaries() == []


async def test_management_cluster_has_no_instance(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster(LOCAL))
    await world.clusters.add_or_replace(cluster("a"))
    await eventually(lambda: world.pid("a"))
    assert [summary.name for summary in world.overview.summaries()] == ["a"]


async def test_switch_ends_the_old_instance_before_the_new_starts(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a"))
    old_pid = await eventually(lambda: world.pid("a"))
    observations: list[tuple[int | None, bool]] = []
    world.runtime.subscribe(lambda name: observations.append((world.runtime.state(name).pid, alive(old_pid))))
    await world.clusters.add_or_replace(cluster("a", server="https://127.0.0.1:2"))
    new_pid = await eventually(lambda: world.pid("a"), lambda pid: pid not in {None, old_pid})
    assert [old_alive for pid, old_alive in observations if pid == new_pid]
    assert not [old_alive for pid, old_alive in observations if pid == new_pid and old_alive]


async def test_renewed_credentials_reach_the_same_process(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a", token="first"))
    pid = await eventually(lambda: world.pid("a"))
    assert world.file("a", "token").read_bytes() == b"first"
    await world.clusters.add_or_replace(cluster("a", token="second"))
    await eventually(world.file("a", "token").read_bytes, lambda content: content == b"second")
    assert world.file("a", "token").stat().st_mode & 0o777 == 0o600
    assert world.pid("a") == pid


async def test_changed_key_that_is_read_once_restarts_the_instance(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"first"}))
    pid = await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"second"}))
    await eventually(lambda: world.pid("a"), lambda found: found not in {None, pid})
    assert not alive(pid)
    assert world.file("a", "sa.key").read_bytes() == b"second"


async def test_configuration_change_has_new_generation_and_fingerprint(world: World, eventually: Eventually) -> None:
    def told() -> tuple[int | None, str | None]:
        summary = world.overview.summaries()[0]
        return summary.generation, summary.configuration

    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Core"}))
    generation, configuration = await eventually(told, lambda found: found[1] is not None)
    await world.clusters.add_or_replace(cluster("a", token="renewed", attributes={"profile": "Core"}))
    await eventually(lambda: world.file("a", "token").read_bytes() == b"renewed")
    assert told() == (generation, configuration)
    await world.clusters.add_or_replace(cluster("a", attributes={"profile": "Full"}))
    later = await eventually(told, lambda found: found[1] not in {None, configuration})
    assert later[0] > generation


async def test_quick_edits_cause_one_restart_and_reverted_edits_none(
    world: World, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": b"first"}))
    pid = await eventually(lambda: world.pid("a"))
    for key in (b"second", b"third", b"first"):
        await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": key}))
    await eventually(lambda: "continues" in caplog.text)
    assert world.pid("a") == pid
    for key in (b"second", b"third"):
        await world.clusters.add_or_replace(cluster("a", credentials={"sa.key": key}))
    await eventually(lambda: "has the changed configuration" in caplog.text)
    assert world.pid("a") not in {None, pid}
    assert caplog.text.count("has the changed configuration") == 1
    assert world.file("a", "sa.key").read_bytes() == b"third"


async def test_failed_change_does_not_delay_a_later_change(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.instance.lifecycle._FIRST_RETRY_SECONDS", 600.0)
    apply = world.runtime.apply

    async def refuse_one(component: Component) -> None:
        if any(file.content == b"refused" for file in component.files.values()):
            raise RuntimeFailure("no room")
        await apply(component)

    monkeypatch.setattr(world.runtime, "apply", refuse_one)
    await world.clusters.add_or_replace(cluster("a", token="first"))
    pid = await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", token="refused"))
    await eventually(lambda: "no room" in world.overview.summaries()[0].last_error)
    await world.clusters.add_or_replace(cluster("a", token="last"))
    await eventually(world.file("a", "token").read_bytes, lambda content: content == b"last")
    assert world.pid("a") == pid


async def test_changes_are_applied_after_a_stray_cancellation(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, cancellations = world.runtime.apply, iter([asyncio.CancelledError()])

    async def let_one_out(component: Component) -> None:
        if any(file.content == b"second" for file in component.files.values()):
            for error in cancellations:
                raise error
        await apply(component)

    monkeypatch.setattr(world.runtime, "apply", let_one_out)
    await world.clusters.add_or_replace(cluster("a", token="first"))
    await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", token="second"))
    await eventually(world.file("a", "token").read_bytes, lambda content: content == b"second")


async def test_invalid_cluster_is_shown_and_disturbs_no_other_instance(world: World, eventually: Eventually) -> None:
    await world.clusters.add_or_replace(cluster("bad", attributes={"profile": "Tiny"}))
    await world.clusters.add_or_replace(cluster("good"))
    await eventually(lambda: world.pid("good"))

    def told() -> dict[str, Any]:
        return {summary.name: summary for summary in world.overview.summaries()}

    await eventually(lambda: told()["bad"].message, lambda message: "unknown controllers.profile 'Tiny'" in message)
    assert told()["bad"].state == "Pending"
    assert told()["bad"].profile == "Tiny"


async def test_only_instances_out_of_skew_are_refused(
    world: World, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    program(world.directory, '[ "$1" = --version ] && echo Kubernetes v1.36.3 || exec sleep 1000')
    for minor in (34, 35, 36, 37, 38):
        await world.clusters.add_or_replace(cluster(f"v{minor}", attributes={"version": f"1.{minor}"}))
    await world.clusters.add_or_replace(cluster("unknown", attributes={"version": ""}))
    for name in ("v36", "v37", "unknown"):
        await eventually(lambda name=name: world.pid(name))

    def told() -> dict[str, Any]:
        return {summary.name: summary for summary in world.overview.summaries()}

    for name in ("v34", "v35", "v38"):
        sentence = await eventually(lambda name=name: told()[name].message, lambda message: "Kubernetes 1." in message)
        number = name.removeprefix("v")
        assert f"needs kube-controller-manager 1.{number} or 1.{int(number) - 1}, and there is 1.36.3 only" in sentence
        assert (told()[name].state, told()[name].pid) == ("Pending", None)
        assert f"registration {name}: its API server is Kubernetes" in caplog.text
    # The API server gets a version that fits, and the other instances keep their processes.
    pids = {name: world.pid(name) for name in ("v36", "v37", "unknown")}
    await world.clusters.add_or_replace(cluster("v35", attributes={"version": "1.36"}))
    await eventually(lambda: world.pid("v35"))
    assert {name: world.pid(name) for name in pids} == pids


async def test_instance_ends_when_its_api_server_gets_out_of_skew(world: World, eventually: Eventually) -> None:
    program(world.directory, '[ "$1" = --version ] && echo Kubernetes v1.36.3 || exec sleep 1000')
    await world.clusters.add_or_replace(cluster("a", attributes={"version": "1.37"}))
    pid = await eventually(lambda: world.pid("a"))
    await world.clusters.add_or_replace(cluster("a", attributes={"version": "1.38"}))
    await eventually(lambda: world.overview.summaries()[0].message, lambda message: "there is 1.36.3 only" in message)
    assert not alive(pid)
