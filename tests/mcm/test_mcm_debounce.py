"""Debounce of changes to a description, and the changes that need another engagement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.describe.programs import Programs
from kplane.mcm.source.debounce import DebouncingProvider, effective
from kplane.provider import Cluster, ClusterConfig, Engagement, Fleet, ProviderError
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ProcessRuntime

Eventually = Callable[..., Any]
NEVER = 3600.0


def cluster(
    *,
    server: str = "https://127.0.0.1:1",
    token: str = "t",
    credentials: dict[str, bytes] | None = None,
    **attributes: str,
) -> Cluster:
    return Cluster(
        "a", config=ClusterConfig(server=server, token=token), credentials=credentials, attributes=attributes
    )


def programs(root: Path, *versions: str) -> Programs:
    directories = []
    for version in versions:
        directory = root / version
        directory.mkdir()
        for name in ("kube-controller-manager", "kube-scheduler"):
            (directory / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
            (directory / name).chmod(0o700)
        directories.append(directory)
    return Programs(directories, runtime=ProcessRuntime(root / "state", programs=directories))


class World:
    """A fleet behind `DebouncingProvider`, and all clusters that were engaged, in order."""

    def __init__(self, directory: Path, *, seconds: float) -> None:
        self.engaged: list[Cluster] = []
        self.clusters = Clusters(awares=[self])
        self._fleet: asyncio.Future[Fleet] = asyncio.get_running_loop().create_future()
        self._settling = DebouncingProvider(self, programs=programs(directory), seconds=seconds)
        self._task = asyncio.create_task(self._settling.run(self.clusters))

    name = "by hand"

    async def run(self, fleet: Fleet) -> None:
        self._fleet.set_result(fleet)
        await asyncio.Event().wait()

    async def engage(self, engagement: Engagement) -> None:
        self.engaged.append(engagement.cluster)

    async def tell(self, *told: Cluster | None) -> None:
        fleet = await self._fleet
        for description in told:
            await (fleet.add_or_replace(description) if description is not None else fleet.remove("a"))

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.clusters.aclose()


@pytest.fixture
async def world_of(tmp_path: Path) -> AsyncIterator[Callable[[float], World]]:
    worlds: list[World] = []

    def make(seconds: float) -> World:
        worlds.append(World(tmp_path, seconds=seconds))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.aclose()


async def test_only_the_last_of_several_quick_edits_is_engaged(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.3)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    last = cluster(profile="Full", server="https://127.0.0.1:2")
    await world.tell(cluster(profile="Nodeless"), cluster(profile="Full"), last)
    await eventually(lambda: len(world.engaged) == 2)
    assert world.engaged[1].equals(last)


async def test_reverted_edit_only_renews_credentials(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.2)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(cluster(profile="Full"), cluster(profile="Core", token="renewed"))
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert len(world.engaged) == 1


async def test_cluster_that_changes_all_the_time_is_still_engaged(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    for number in range(1000):
        await world.tell(cluster(profile="Core", server=f"https://127.0.0.1:{number + 2}"))
        await asyncio.sleep(0.01)
        if len(world.engaged) > 1:
            return
    pytest.fail("it was never followed")


async def test_secret_edited_in_several_steps_is_applied_once(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.3)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(cluster(profile="Core", token="half"), cluster(profile="Core", token="whole"))
    assert world.clusters.get("a").config.token == "t"
    await eventually(lambda: world.clusters.get("a").config.token != "t")
    assert world.clusters.get("a").config.token == "whole"
    assert len(world.engaged) == 1


def key() -> bytes:
    return ServingCertificate.create(host="127.0.0.1").key


async def test_only_invalid_keys_of_a_description_are_held_back(
    world_of: Any, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    world, first, second = world_of(0.05), key(), key()
    await world.tell(cluster(credentials={"sa.key": first}))
    await eventually(lambda: len(world.engaged) == 1)
    invalid_keys = {"sa.key": b"garbage", "signing-ca.crt": b"garbage", "signing-ca.key": b"garbage", "other": b"new"}
    for _ in range(2):  # each write to the registration repeats the description
        await world.tell(cluster(credentials=invalid_keys, profile="Full", token="renewed"))
        await eventually(lambda: len(world.engaged) == 2)
    engaged = world.engaged[1]
    assert (engaged.attributes["profile"], engaged.config.token) == ("Full", "renewed")
    assert engaged.credentials == {"sa.key": first, "other": b"new"}
    assert caplog.text.count("invalid key sa.key of its Secret") == 1
    assert caplog.text.count("invalid key signing-ca.crt and signing-ca.key of its Secret") == 1
    assert "garbage" not in caplog.text
    await world.tell(cluster(credentials={"sa.key": second}, profile="Full", token="renewed"))
    await eventually(lambda: world.clusters.get("a").credentials == {"sa.key": second})
    await world.tell(cluster(credentials={"sa.key": b"garbage"}, profile="Full", token="again"))
    await eventually(lambda: world.clusters.get("a").config.token == "again")
    assert world.clusters.get("a").credentials == {"sa.key": second}
    assert caplog.text.count("invalid key sa.key of its Secret") == 2
    assert len(world.engaged) == 2


async def test_new_address_is_engaged_even_with_invalid_keys(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.05)
    await world.tell(cluster(credentials={"sa.key": key()}))
    await eventually(lambda: len(world.engaged) == 1)
    moved = cluster(credentials={"sa.key": b"garbage"}, server="https://127.0.0.1:2", profile="Nodeless")
    await world.tell(moved)
    await eventually(lambda: len(world.engaged) == 2)
    assert world.engaged[1].equals(moved)


async def test_reverted_edit_with_an_invalid_key_keeps_the_former_key(world_of: Any, eventually: Eventually) -> None:
    world, valid_keys = world_of(0.1), {"sa.key": key()}
    await world.tell(cluster(credentials=valid_keys, profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(
        cluster(credentials=valid_keys, profile="Full"),
        cluster(credentials={"sa.key": b"garbage"}, profile="Core", token="renewed"),
    )
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert world.clusters.get("a").credentials == valid_keys
    assert len(world.engaged) == 1


async def test_key_that_breaks_during_a_restart_is_held_back(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, valid_keys, ending, ended = world_of(0.05), {"sa.key": key()}, asyncio.Event(), asyncio.Event()
    engage = world.engage

    async def end() -> None:
        ending.set()
        await ended.wait()

    async def engage_slow_end(engagement: Engagement) -> None:
        engagement.on_close(end)
        await engage(engagement)

    monkeypatch.setattr(world, "engage", engage_slow_end)
    await world.tell(cluster(credentials=valid_keys, profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(cluster(credentials=valid_keys, profile="Full"))
    await ending.wait()
    async with asyncio.timeout(10):  # the change settles without a wait for the end of the instance
        await world.tell(cluster(credentials={"sa.key": b"garbage"}, profile="Full", token="renewed"))
    ended.set()
    await eventually(lambda: len(world.engaged) == 2)
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert world.engaged[1].credentials == world.clusters.get("a").credentials == valid_keys


async def test_cluster_whose_keys_were_never_valid_is_engaged(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.05)
    for number, invalid_key in enumerate((b"garbage", b"other garbage")):
        await world.tell(cluster(credentials={"sa.key": invalid_key}, profile=("Core", "Full")[number]))
        await eventually(lambda number=number: len(world.engaged) == number + 1)
    valid_key = key()
    await world.tell(cluster(credentials={"sa.key": valid_key}, profile="Full"))
    await eventually(lambda: world.clusters.get("a").credentials["sa.key"] == valid_key)


async def test_repeated_equal_description_does_not_extend_the_delay(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.source.debounce._PATIENCE", NEVER)
    world = world_of(0.2)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)

    async def followed() -> bool:
        await world.tell(cluster(profile="Full"))  # each write to the registration repeats the description
        return len(world.engaged) == 2

    await eventually(followed)


async def test_new_control_plane_and_removal_are_applied_at_once(world_of: Any, eventually: Eventually) -> None:
    world = world_of(NEVER)
    await world.tell(cluster(profile="Core", controlPlaneUID="1"))
    await eventually(lambda: len(world.engaged) == 1)
    switched = cluster(profile="Core", controlPlaneUID="2", server="https://127.0.0.1:2")
    await world.tell(cluster(profile="Full", controlPlaneUID="1"), switched)
    await eventually(lambda: len(world.engaged) == 2)
    assert world.engaged[1].equals(switched)
    await world.tell(cluster(profile="Full", controlPlaneUID="2"), None)
    assert world.clusters.names() == []
    await world.tell(cluster(profile="Full", controlPlaneUID="2"))
    await eventually(lambda: len(world.engaged) == 3)


async def test_change_that_the_fleet_refuses_is_retried(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    refusals: list[Cluster] = []

    async def refuse(found: Cluster) -> None:
        refusals.append(found)
        monkeypatch.undo()
        raise ProviderError("not now")

    monkeypatch.setattr(world.clusters, "add_or_replace", refuse)
    await world.tell(cluster(profile="Full"))
    await eventually(lambda: len(world.engaged) == 2)
    assert len(refusals) == 1
    assert world.engaged[1].attributes["profile"] == "Full"
    assert not world._task.done()


async def test_refused_change_is_dropped_after_a_newer_change(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    attempts: list[Cluster] = []

    async def refuse(found: Cluster) -> None:
        attempts.append(found)
        monkeypatch.undo()
        # The removal and the newer change come during the attempt.
        await world.tell(None, cluster(profile="Nodeless"))
        raise ProviderError("not now")

    monkeypatch.setattr(world.clusters, "add_or_replace", refuse)
    await world.tell(cluster(profile="Full"))
    await eventually(lambda: len(world.engaged) == 2)
    await eventually(
        lambda: len(asyncio.all_tasks()) and not [t for t in asyncio.all_tasks() if "settle" in t.get_name()]
    )
    assert [description.attributes["profile"] for description in world.engaged] == ["Core", "Nodeless"]


@pytest.mark.parametrize(
    ("given", "same", "flags"),
    [
        ({"services": "Controllers,Workloads"}, {"services": "Controllers"}, NO_FLAGS),
        # Another engagement would restart the controllers.
        ({"services": "Controllers,Scheduler"}, {"services": "Controllers"}, NO_FLAGS),
        ({"profile": ""}, {"profile": "Nodeless"}, NO_FLAGS),
        ({"version": "1.37"}, {"version": "1.36"}, NO_FLAGS),
    ],
)
async def test_equivalent_description_continues_the_engagement(
    tmp_path: Path, given: dict[str, str], same: dict[str, str], flags: Flags
) -> None:
    catalog = programs(tmp_path, "v1.35.1", "v1.36.3")
    first, second = [
        await effective(cluster(**attributes), programs=catalog, flags=flags) for attributes in (given, same)
    ]
    assert first.continues(second)
    assert first.attributes.get("version") == given.get("version")  # the version that errors name


@pytest.mark.parametrize(
    ("given", "other", "flags"),
    [
        ({"profile": ""}, {"profile": "Nodeless"}, Flags(controllers=("namespace-controller",))),
        ({"profile": "", "controllers": "namespace-controller"}, {"profile": "Nodeless", "controllers": ""}, NO_FLAGS),
        ({"version": "1.35"}, {"version": "1.36"}, NO_FLAGS),
        ({"version": "1.38"}, {"version": "1.36"}, NO_FLAGS),
    ],
)
async def test_different_description_does_not_continue_the_engagement(
    tmp_path: Path, given: dict[str, str], other: dict[str, str], flags: Flags
) -> None:
    catalog = programs(tmp_path, "v1.35.1", "v1.36.3")
    first, second = [
        await effective(cluster(**attributes), programs=catalog, flags=flags) for attributes in (given, other)
    ]
    assert not first.continues(second)
