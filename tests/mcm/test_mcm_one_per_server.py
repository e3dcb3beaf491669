"""Of several clusters with the same API server only the oldest has an instance, in any order of changes."""

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
"""Creation time and uid by name. b and e are of the same second, and e has the smaller uid."""


class Present:
    """A fleet whose clusters end when `ended` is set. `most` is the highest number of clusters of a server."""

    def __init__(self) -> None:
        self.clusters: dict[str, Cluster] = {}
        self.most = 0
        self.ended = asyncio.Event()
        self.ended.set()
        self.fails = False

    async def add_or_replace(self, cluster: Cluster) -> None:
        self.clusters[cluster.name] = cluster
        servers = [server.config.server.rstrip("/").lower() for server in self.clusters.values()]
        self.most = max(self.most, *(servers.count(server) for server in servers))

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
    """A provider that runs the script of a test."""

    name = "scripted"

    def __init__(self, script: Callable[[Fleet], object]) -> None:
        self._script = script

    async def run(self, fleet: Fleet) -> None:
        await self._script(fleet)  # type: ignore[misc]


def cluster(name: str, server: str = "https://one") -> Cluster:
    return Cluster(name, config=ClusterConfig(server=server, token="t"))


async def played(script: Callable[[Fleet], object], fleet: Present) -> list[tuple[str, str]]:
    """Run a script. Returns the refused clusters with the reasons."""
    refusals: list[tuple[str, str]] = []
    provider = OnePerServerProvider(
        Scripted(script), age=AGES.__getitem__, refused=lambda each, why: refusals.append((each.name, why))
    )
    assert provider.name == "scripted"
    await provider.run(fleet)
    return refusals


async def test_oldest_cluster_has_the_instance_and_the_next_follows() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("c", "https://ONE:443/"))
        await fleet.add_or_replace(cluster("d", "https://two"))
        assert present.names() == ["b", "d"]
        # The provider sees all clusters that it added, so it does not add them again.
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

    reason = "{}, which is older, has the API server at https://one:443; delete one of the two or correct its URL"
    refusals = [("c", "b"), ("b", "a"), ("c", "a"), ("c", "b")]
    assert await played(script, present) == [(name, reason.format(holder)) for name, holder in refusals]
    assert present.most == 1


async def test_next_cluster_waits_for_the_end_of_the_former_cluster() -> None:
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


async def test_failed_end_is_retried_before_the_next_cluster_begins() -> None:
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


async def test_cluster_with_an_instance_keeps_it_against_equal_age() -> None:
    present = Present()

    async def script(fleet: Fleet) -> None:
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("e"))
        assert present.names() == ["b"]
        await fleet.remove("b")
        assert present.names() == ["e"]

    [(name, reason)] = await played(script, present)
    assert name == "e"
    assert reason.startswith("b, which was created in the same second and comes first, has the API server at ")


@pytest.mark.parametrize(("own", "foreign", "left"), [("b", "e", []), ("e", "b", ["e"])])
async def test_uid_decides_between_two_mcm_at_equal_age(
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
async def test_any_order_of_steps_ends_with_the_oldest_cluster_alone(steps: list[tuple[str, str | None]]) -> None:
    present = Present()
    servers_by_name: dict[str, str] = {}

    async def script(fleet: Fleet) -> None:
        for name, server in steps:
            if server is None:
                servers_by_name.pop(name, None)
                await fleet.remove(name)
            else:
                servers_by_name[name] = server
                await fleet.add_or_replace(cluster(name, server))

    await played(script, present)
    servers = set(servers_by_name.values())
    oldest = {
        server: min(AGES[name][0] for name in servers_by_name if servers_by_name[name] == server) for server in servers
    }
    assert {servers_by_name[name]: AGES[name][0] for name in present.clusters} == oldest
    assert present.most <= 1


async def test_older_cluster_of_another_mcm_has_its_server(eventually: Callable[..., object]) -> None:
    """Only the other mcm reads the credentials of such a cluster. This mcm reads only its object."""
    present, refusals = Present(), []
    provider: OnePerServerProvider

    async def script(fleet: Fleet) -> None:
        provider.note_elsewhere("a", "HTTPS://one/")
        await fleet.add_or_replace(cluster("b"))
        await fleet.add_or_replace(cluster("c", "https://two"))
        assert present.names() == ["c"]
        assert refusals == ["b"]
        # The older cluster moves to another address and back.
        provider.note_elsewhere("a", "https://three")
        await eventually(lambda: present.names() == ["b", "c"])
        present.ended.clear()
        provider.note_elsewhere("a", "https://one")
        present.ended.set()
        await eventually(lambda: present.names() == ["c"])
        assert refusals == ["b", "b"]
        # This mcm becomes the owner of the older cluster.
        provider.note_elsewhere("a", None)
        await fleet.add_or_replace(cluster("a"))
        await eventually(lambda: present.names() == ["a", "c"])
        # The other mcm owns the older cluster again. Before the removal here, no cluster of its server has an instance.
        provider.note_elsewhere("a", "https://one")
        await eventually(lambda: present.names() == ["c"])
        await fleet.remove("a")
        # A younger cluster of another mcm does not count here.
        provider.note_elsewhere("a", None)
        provider.note_elsewhere("d", "https://one")
        await eventually(lambda: present.names() == ["b", "c"])

    provider = OnePerServerProvider(
        Scripted(script), age=AGES.__getitem__, refused=lambda each, _why: refusals.append(each.name)
    )
    await provider.run(present)
    assert present.most == 1
