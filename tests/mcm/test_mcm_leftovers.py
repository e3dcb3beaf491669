"""Files of instances that have ended, also if they cannot be removed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.mcm.instance.leftovers import Leftovers
from kplane.provider.aio.backoff import Backoff
from kplane.workloads import ProcessRuntime
from kplane.workloads.processes.directory import ComponentDirectory

from .instances_world import World, alive, cluster

Eventually = Callable[..., Any]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "next_delay", lambda _: 0.05)


@pytest.fixture
def undeletable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of components whose directory cannot be removed: a directory that is mounted cannot be renamed."""
    names: set[str] = set()
    remove = ComponentDirectory.remove

    def refuse(directory: ComponentDirectory) -> None:
        if directory.path.name in names:
            raise OSError(16, "Device or resource busy")
        remove(directory)

    monkeypatch.setattr(ComponentDirectory, "remove", refuse)
    return names


@contextlib.asynccontextmanager
async def running(leftovers: Leftovers, *, in_use: Callable[[], Any] = tuple) -> AsyncIterator[None]:
    task = asyncio.create_task(leftovers.run(in_use))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def left_by_a_former_run(directory: Path, *names: str) -> list[Path]:
    keys = [directory / name / "files" / "sa.key" for name in names]
    for key in keys:
        key.parent.mkdir(parents=True)
        key.write_text("secret")
    return keys


async def test_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    [key] = left_by_a_former_run(tmp_path / "state", "kcm-a")
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path]) as runtime:
        await Leftovers(runtime).remove_former()
        assert not runtime.names()
    assert not key.parent.parent.exists()


async def test_undeletable_leftover_delays_no_other_and_is_retried(
    tmp_path: Path, undeletable: set[str], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    keys = left_by_a_former_run(tmp_path / "state", "kcm-a", "kcm-b")
    undeletable.add("kcm-a")
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path]) as runtime:
        leftovers = Leftovers(runtime)
        await leftovers.remove_former()
        assert [key.exists() for key in keys] == [True, False]
        async with running(leftovers):
            await eventually(lambda: caplog.text.count("failed to remove the files of instance kcm-a: ") > 2)
            undeletable.clear()
            await eventually(lambda: not keys[0].exists())
            assert not runtime.names()


async def test_leftover_that_is_in_use_again_is_kept(
    world: World, undeletable: set[str], eventually: Eventually
) -> None:
    leftovers, name = Leftovers(world.runtime), component_name("a")
    left_by_a_former_run(world.directory / "state", name)
    undeletable.add(name)
    await leftovers.remove([name])
    await world.clusters.add_or_replace(cluster("a"))
    pid = await eventually(lambda: world.pid("a"))
    undeletable.clear()
    async with running(leftovers, in_use=world.instances.components):
        await eventually(lambda: not leftovers._names)
    assert alive(pid)
    await world.clusters.remove("a")
    assert not world.runtime.names()


async def test_instance_with_undeletable_files_ends_and_is_reported(
    world: World, undeletable: set[str], eventually: Eventually
) -> None:
    """The removal of the cluster returns, so that the move of a shard, which waits for it, goes on."""
    await world.clusters.add_or_replace(cluster("a"))
    pid = await eventually(lambda: world.pid("a"))
    undeletable.add(component_name("a"))
    async with asyncio.timeout(30.0):
        await world.clusters.remove("a")
    assert not alive(pid)
    assert [report for report, _ in world.observer.told][-2:] == ["StopFailed", "ended"]
    assert world.file("a", "token").exists()
    undeletable.clear()
    async with running(world.instances._leftovers):
        await eventually(lambda: not world.runtime.names())
