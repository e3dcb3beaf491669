"""Of several clusters with one API server the oldest has an instance, in whatever order they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.mcm.source.one_per_server import OnePerServerProvider
from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, Fleet

AGES = {
    "a": ("2025-12-31", "8"),
    "b": ("2026-01-01", "7"),
    "c": ("2026-01-02", "1"),
    "d": ("2026-01-03", "2"),
    "e": ("2026-01-01", "3"),
}
"""Of one second are b and e, and e has the smaller uid."""


class Present:
    """A fleet whose clusters end when `ended` says so; it notes how many each server has."""

    def __init__(self) -> None:
        self.clusters: dict[str, Cluster] = {}
        self.most = 0
        self.ended = asyncio.Event()
        self.ended.set()
        self.fails = False

    async def add_or_replace(self, cluster: Cluster) -> None:
        self.clusters[cluster.name] = cluster
        servers = [each.config.server.rstrip("/").lower() for each in self.clusters.values()]
        self.most = max(self.most, *(servers.count(each) for each in servers))

    async def remove(self, name: str) -> None:
        if self.fails:
            raise RuntimeError("it does not end")
        await self.ended.wait()
        self.clusters.pop(name, None)

    def get(self, name: str) -> Cluster:
        try:
            return self.clusters[name]
        except KeyError:
            raise ClusterNotFound(name) from None

    def names(self) -> list[str]:
        return sorted(self.clusters)


class Scripted:
    """A provider that does what a test tells it."""

    name = "scripted"

    def __init__(self, script: Callable[[Fleet], object]) -> None:
        self._script = script

    async def run(self, fleet: Fleet) -> None:
        await self._script(fleet)  # type: ignore[misc]


def cluster(name: str, server: str = "https://one") -> Cluster:
    return Cluster(name, config=ClusterConfig(server=server, token="t"))


async def played(script: Callable[[Fleet], object], fleet: Present) -> list[tuple[str, str]]:
    """Run a script, and return who was refused and why."""
    refused: list[tuple[str, str]] = []
    provider = OnePerServerProvider(
        Scripted(script), age=AGES.__getitem__, refused=lambda each, why: refused.append((each.name, why))
    )
    assert provider.name == "scripted"
    await provider.run(fleet)
    return refused


async def test_the_oldest_one_has_it_and_the_next_one_follows() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("c", "https://ONE:443/"))
        await fleet.add_or_replace(cluster("d", "https://two"))
        assert present.names() == ["b", "d"]
        # The provider finds what it told, and would not tell it again.
        assert (fleet.names(), fleet.get("c").name) == (["b", "c", "d"], "c")
        await fleet.add_or_replace(cluster("a"))
        assert present.names() == ["a", "d"]
        await fleet.add_or_replace(cluster("a", "https://elsewhere"))
        assert present.names() == ["a", "b", "d"]
        await fleet.remove("b")
        assert present.names() == ["a", "c", "d"]
        await fleet.remove("c")
        await fleet.remove("unheard")
        assert present.names() == ["a", "d"]

    why = "{}, which is older, has the API server at https://one:443; delete one of the two or correct its URL"
    told = [("c", "b"), ("b", "a"), ("c", "a"), ("c", "b")]
    assert await played(script, present) == [(name, why.format(holder)) for name, holder in told]
    assert present.most == 1


async def test_the_next_one_waits_for_the_end_of_the_former_one() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("a"))
        await fleet.add_or_replace(cluster("b"))
        present.ended.clear()
        leaving = asyncio.ensure_future(fleet.remove("a"))
        again = asyncio.ensure_future(fleet.add_or_replace(cluster("b")))
        for _ in range(5):
            await asyncio.sleep(0)
        assert present.names() == ["a"]
        present.ended.set()
        await asyncio.gather(leaving, again)
        assert present.names() == ["b"]

    await played(script, present)
    assert present.most == 1


async def test_an_end_that_fails_is_tried_again_before_another_one_begins() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("a"))
        await fleet.add_or_replace(cluster("b"))
        present.fails = True
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await fleet.remove("a")
        assert present.names() == ["a"]
        present.fails = False
        await fleet.remove("a")
        assert present.names() == ["b"]

    await played(script, present)


async def test_of_one_second_the_cluster_with_an_instance_keeps_it() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("e"))
        assert present.names() == ["b"]
        await fleet.remove("b")
        assert present.names() == ["e"]

    [(name, why)] = await played(script, present)
    assert name == "e"
    assert why.startswith("b, which was created in the same second and comes first, has the API server at ")


@pytest.mark.parametrize(("own", "foreign", "left"), [("b", "e", []), ("e", "b", ["e"])])
async def test_of_one_second_the_uid_decides_between_two_mcm(
    eventually: Callable[..., object], own: str, foreign: str, left: list[str]
) -> None:
    """Both mcm have to agree, and neither sees which cluster of the other has an instance."""
    present = Present()
    provider: OnePerServerProvider

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster(own))
        assert present.names() == [own]
        provider.note_elsewhere(foreign, "https://one")
        await eventually(lambda: present.names() == left)

    provider = OnePerServerProvider(Scripted(script), age=AGES.__getitem__, refused=lambda *_: None)
    await provider.run(present)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from([None, "https://one", "https://two"]))))
async def test_any_order_ends_the_same_and_never_has_two(steps: list[tuple[str, str | None]]) -> None:
    present = Present()
    wanted: dict[str, str] = {}

    async def script(fleet: Fleet) -> None:
        for name, server in steps:
            if server is None:
                wanted.pop(name, None)
                await fleet.remove(name)
            else:
                wanted[name] = server
                await fleet.add_or_replace(cluster(name, server))

    await played(script, present)
    servers = set(wanted.values())
    oldest = {server: min(AGES[name][0] for name in wanted if wanted[name] == server) for server in servers}
    assert {wanted[name]: AGES[name][0] for name in present.clusters} == oldest
    assert present.most <= 1


async def test_an_older_cluster_of_another_mcm_has_its_server_too(eventually: Callable[..., object]) -> None:
    """Only that mcm reads the credentials of such a cluster; here, its object counts."""
    present, refused = Present(), []
    provider: OnePerServerProvider

    async def script(fleet: Fleet) -> None:
        provider.note_elsewhere("a", "HTTPS://one/")
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("c", "https://two"))
        assert present.names() == ["c"]
        assert refused == ["b"]
        # It goes to another address, and comes back.
        provider.note_elsewhere("a", "https://three")
        await eventually(lambda: present.names() == ["b", "c"])
        present.ended.clear()
        provider.note_elsewhere("a", "https://one")
        present.ended.set()
        await eventually(lambda: present.names() == ["c"])
        assert refused == ["b", "b"]
        # It becomes this mcm's own.
        provider.note_elsewhere("a", None)
        await fleet.add_or_replace(cluster("a"))
        await eventually(lambda: present.names() == ["a", "c"])
        # And another one's again; until that is removed here, it has no instance.
        provider.note_elsewhere("a", "https://one")
        await eventually(lambda: present.names() == ["c"])
        await fleet.remove("a")
        # A younger one elsewhere is that mcm's matter.
        provider.note_elsewhere("a", None)
        provider.note_elsewhere("d", "https://one")
        await eventually(lambda: present.names() == ["b", "c"])

    provider = OnePerServerProvider(
        Scripted(script), age=AGES.__getitem__, refused=lambda each, _why: refused.append(each.name)
    )
    await provider.run(present)
    assert present.most == 1
