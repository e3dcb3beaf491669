"""Which changes of a description end an instance, and when."""

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
    """A fleet behind `DebouncingProvider`, and everything that was engaged."""

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
        for found in told:
            await (fleet.add_or_replace(found) if found is not None else fleet.remove("a"))

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.clusters.aclose()


@pytest.fixture
async def world_of(tmp_path: Path) -> AsyncIterator[Callable[[float], World]]:
    made: list[World] = []

    def make(seconds: float) -> World:
        made.append(World(tmp_path, seconds=seconds))
        return made[-1]

    yield make
    for world in made:
        await world.aclose()


async def test_of_several_edits_in_a_row_the_last_one_counts(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.3)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    last = cluster(profile="Full", server="https://127.0.0.1:2")
    await world.tell(cluster(profile="Nodeless"), cluster(profile="Full"), last)
    await eventually(lambda: len(world.engaged) == 2)
    assert world.engaged[1].equals(last)


async def test_edits_that_lead_back_are_none_but_for_the_credentials(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.2)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(cluster(profile="Full"), cluster(profile="Core", token="renewed"))
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert len(world.engaged) == 1


async def test_one_that_changes_all_the_time_is_followed(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    for number in range(1000):
        await world.tell(cluster(profile="Core", server=f"https://127.0.0.1:{number + 2}"))
        await asyncio.sleep(0.01)
        if len(world.engaged) > 1:
            return
    pytest.fail("it was never followed")


async def test_a_secret_that_is_edited_in_several_steps_is_followed_once(world_of: Any, eventually: Eventually) -> None:
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


async def test_a_key_that_no_instance_could_start_with_holds_back_nothing_but_itself(
    world_of: Any, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    world, first, second = world_of(0.05), key(), key()
    await world.tell(cluster(credentials={"sa.key": first}))
    await eventually(lambda: len(world.engaged) == 1)
    broken = {"sa.key": b"garbage", "signing-ca.crt": b"garbage", "signing-ca.key": b"garbage", "other": b"new"}
    for _ in range(2):  # as each write to its registration does
        await world.tell(cluster(credentials=broken, profile="Full", token="renewed"))
        await eventually(lambda: len(world.engaged) == 2)
    present = world.engaged[1]
    assert (present.attributes["profile"], present.config.token) == ("Full", "renewed")
    assert present.credentials == {"sa.key": first, "other": b"new"}
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


async def test_another_address_is_turned_to_whatever_the_keys_are(world_of: Any, eventually: Eventually) -> None:
    world = world_of(0.05)
    await world.tell(cluster(credentials={"sa.key": key()}))
    await eventually(lambda: len(world.engaged) == 1)
    moved = cluster(credentials={"sa.key": b"garbage"}, server="https://127.0.0.1:2", profile="Nodeless")
    await world.tell(moved)
    await eventually(lambda: len(world.engaged) == 2)
    assert world.engaged[1].equals(moved)


async def test_an_edit_that_is_taken_back_is_none_where_keys_break_with_it(
    world_of: Any, eventually: Eventually
) -> None:
    world, good = world_of(0.1), {"sa.key": key()}
    await world.tell(cluster(credentials=good, profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(
        cluster(credentials=good, profile="Full"),
        cluster(credentials={"sa.key": b"garbage"}, profile="Core", token="renewed"),
    )
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert world.clusters.get("a").credentials == good
    assert len(world.engaged) == 1


async def test_keys_that_break_while_an_instance_ends_do_not_reach_the_next_one(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, good, ending, ended = world_of(0.05), {"sa.key": key()}, asyncio.Event(), asyncio.Event()
    engage = world.engage

    async def end() -> None:
        ending.set()
        await ended.wait()

    async def engage_slow_end(engagement: Engagement) -> None:
        engagement.on_close(end)
        await engage(engagement)

    monkeypatch.setattr(world, "engage", engage_slow_end)
    await world.tell(cluster(credentials=good, profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    await world.tell(cluster(credentials=good, profile="Full"))
    await ending.wait()
    async with asyncio.timeout(10):  # it settles, and does not wait for that end
        await world.tell(cluster(credentials={"sa.key": b"garbage"}, profile="Full", token="renewed"))
    ended.set()
    await eventually(lambda: len(world.engaged) == 2)
    await eventually(lambda: world.clusters.get("a").config.token == "renewed")
    assert world.engaged[1].credentials == world.clusters.get("a").credentials == good


async def test_keys_that_are_broken_from_the_beginning_are_left_to_the_instance_to_tell(
    world_of: Any, eventually: Eventually
) -> None:
    world = world_of(0.05)
    for number, broken in enumerate((b"garbage", b"other garbage")):
        await world.tell(cluster(credentials={"sa.key": broken}, profile=("Core", "Full")[number]))
        await eventually(lambda number=number: len(world.engaged) == number + 1)
    good = key()
    await world.tell(cluster(credentials={"sa.key": good}, profile="Full"))
    await eventually(lambda: world.clusters.get("a").credentials["sa.key"] == good)


async def test_what_is_told_again_and_again_is_put_off_by_nothing(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.source.debounce._PATIENCE", NEVER)
    world = world_of(0.2)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)

    async def followed() -> bool:
        await world.tell(cluster(profile="Full"))  # as each write to its registration does
        return len(world.engaged) == 2

    await eventually(followed)


async def test_what_cannot_wait_does_not(world_of: Any, eventually: Eventually) -> None:
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


async def test_what_the_fleet_refuses_is_tried_again_and_ends_no_other_cluster(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    refused: list[Cluster] = []

    async def refuse(found: Cluster) -> None:
        refused.append(found)
        monkeypatch.undo()
        raise ProviderError("not now")

    monkeypatch.setattr(world.clusters, "add_or_replace", refuse)
    await world.tell(cluster(profile="Full"))
    await eventually(lambda: len(world.engaged) == 2)
    assert len(refused) == 1
    assert world.engaged[1].attributes["profile"] == "Full"
    assert not world._task.done()


async def test_what_was_refused_comes_back_neither_after_a_removal_nor_over_what_is_newer(
    world_of: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0.05)
    await world.tell(cluster(profile="Core"))
    await eventually(lambda: len(world.engaged) == 1)
    tried: list[Cluster] = []

    async def refuse(found: Cluster) -> None:
        tried.append(found)
        monkeypatch.undo()
        # It came while that one was tried.
        await world.tell(None, cluster(profile="Nodeless"))
        raise ProviderError("not now")

    monkeypatch.setattr(world.clusters, "add_or_replace", refuse)
    await world.tell(cluster(profile="Full"))
    await eventually(lambda: len(world.engaged) == 2)
    await eventually(
        lambda: len(asyncio.all_tasks()) and not [t for t in asyncio.all_tasks() if "settle" in t.get_name()]
    )
    assert [found.attributes["profile"] for found in world.engaged] == ["Core", "Nodeless"]


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
async def test_what_comes_to_the_same_is_the_same(
    tmp_path: Path, given: dict[str, str], same: dict[str, str], flags: Flags
) -> None:
    known = programs(tmp_path, "v1.35.1", "v1.36.3")
    first, second = [await effective(cluster(**found), programs=known, flags=flags) for found in (given, same)]
    assert first.continues(second)
    assert first.attributes.get("version") == given.get("version")  # as it is told of in errors


@pytest.mark.parametrize(
    ("given", "other", "flags"),
    [
        ({"profile": ""}, {"profile": "Nodeless"}, Flags(controllers=("namespace-controller",))),
        ({"profile": "", "controllers": "namespace-controller"}, {"profile": "Nodeless", "controllers": ""}, NO_FLAGS),
        ({"version": "1.35"}, {"version": "1.36"}, NO_FLAGS),
        ({"version": "1.38"}, {"version": "1.36"}, NO_FLAGS),
    ],
)
async def test_what_does_not_is_not(tmp_path: Path, given: dict[str, str], other: dict[str, str], flags: Flags) -> None:
    known = programs(tmp_path, "v1.35.1", "v1.36.3")
    first, second = [await effective(cluster(**found), programs=known, flags=flags) for found in (given, other)]
    assert not first.continues(second)
