"""Envoy's files: what is written, in which order, and what becomes of a route that Envoy refuses."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway.errors import ConfigurationRejected
from kplane.gateway.files import Publisher
from kplane.gateway.routes import Route

from .fleet import route, serving


class Judge:
    """In the place of Envoy: refuses what names a port of its list."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refuses: set[int] = set()

    async def __call__(self, configuration: bytes) -> None:
        self.asked.append(json.loads(configuration))
        if any(f'"port_value":{port}}}' in configuration.decode() for port in self.refuses):
            raise ConfigurationRejected("no")

    def clusters(self, at: int = -1) -> set[str]:
        names = {cluster["name"] for cluster in self.asked[at]["static_resources"]["clusters"]}
        return {name.partition("/")[0] for name in names} - {"authorizer"}


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
async def publisher(judge: Judge, tmp_path: Path) -> Publisher:
    made = Publisher(tmp_path / "gateway", validate=judge)
    await made.prepare()
    return made


def _snapshot(publisher: Publisher) -> dict[str, tuple[int, bytes]]:
    root = Path(publisher.layout.directory)
    return {
        str(file.relative_to(root)): (file.stat().st_ino, file.read_bytes())
        for file in root.rglob("*")
        if file.is_file()
    }


async def test_equal_routes_write_nothing_and_ask_nobody(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    before, asked = _snapshot(publisher), len(judge.asked)
    await publisher.publish([route("b"), route("a")], serving=serving())
    assert _snapshot(publisher) == before
    assert len(judge.asked) == asked


async def test_only_what_is_new_is_validated(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    assert judge.clusters() == {"uid-a", "uid-b"}
    await publisher.publish([route("a"), route("b", port=7), route("c")], serving=serving())
    assert judge.clusters() == {"uid-b", "uid-c"}


async def test_a_moved_api_server_changes_its_cluster_alone(publisher: Publisher) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    before, clusters = _snapshot(publisher), _clusters(publisher)
    await publisher.publish([route("a"), route("b", port=7)], serving=serving())
    after = _snapshot(publisher)
    assert {name for name in after if after[name] != before.get(name)} == {"clusters/clusters.json"}
    changed = {name for name, cluster in _clusters(publisher).items() if cluster != clusters[name]}
    assert changed == {"uid-b", "uid-b/front-proxy", "uid-b/changes", "uid-b/front-proxy-changes"}


def _clusters(publisher: Publisher) -> dict[str, Any]:
    found = json.loads(Path(publisher.layout.clusters).read_text())["resources"]
    return {cluster["name"]: cluster for cluster in found}


async def test_a_refused_route_stays_as_it_was_and_others_are_served(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a")], serving=serving())
    judge.refuses = {13}
    served = [route("a", port=13), route("b"), route("c", port=13)]
    published = await publisher.publish(served, serving=serving())
    assert set(published.refused) == {"uid-a", "uid-c"}
    assert published.routes[:2] == [route("a"), route("b")]
    assert published.routes[2].upstream is None
    clusters = _clusters(publisher)
    assert '"port_value": 6443' in json.dumps(clusters["uid-a"])
    assert "uid-b" in clusters
    assert "uid-c" not in clusters
    # It is asked about again, as long as it is wanted.
    judge.refuses = set()
    assert (await publisher.publish(served, serving=serving())).refused == {}


async def test_a_refused_listener_changes_nothing(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a")], serving=serving())
    before = _snapshot(publisher)
    judge.refuses = {666}
    with pytest.raises(ConfigurationRejected):
        await publisher.publish([route("b")], serving=dataclasses.replace(serving(), port=666))
    assert _snapshot(publisher) == before


async def test_a_control_plane_that_is_gone_or_absent_has_no_cluster(publisher: Publisher) -> None:
    absent = Route(key="uid-c", cluster_path="c", upstream=None)
    await publisher.publish([route("a"), route("b"), route("c")], serving=serving())
    published = await publisher.publish([route("a"), absent], serving=serving())
    assert published.leaving
    await publisher.prune(published.versions)
    assert set(_clusters(publisher)) == {"uid-a", "uid-a/front-proxy", "uid-a/changes", "uid-a/front-proxy-changes"}


async def test_what_envoy_watches_does_not_grow_with_the_control_planes(publisher: Publisher) -> None:
    """Each watched file takes one of the 128 inotify instances of a user, and Envoy aborts without one."""
    await publisher.publish([route(f"r{number}") for number in range(50)], serving=serving())
    files = [file for file in Path(publisher.layout.directory).rglob("*.json") if file.name != "bootstrap.json"]
    assert len(files) == 5


async def test_only_the_gateway_reads_its_files(publisher: Publisher) -> None:
    await publisher.publish([route("a")], serving=serving())
    root = Path(publisher.layout.directory)
    assert {file.stat().st_mode & 0o077 for file in (root, *root.rglob("*"))} == {0}


async def test_a_publication_that_was_cut_off_is_repeated(publisher: Publisher, judge: Judge, tmp_path: Path) -> None:
    await publisher.publish([route("a")], serving=serving())
    (Path(publisher.layout.routes).with_name(".routes.json.new")).write_text("half of")
    again = Publisher(tmp_path / "gateway", validate=judge)
    await again.prepare()
    published = await again.publish([route("a"), route("b")], serving=serving())
    assert published.versions.routes in Path(again.layout.routes).read_text()


async def test_one_that_wakes_is_validated_before_it_is_awake(publisher: Publisher, judge: Judge) -> None:
    since = datetime(2026, 11, 23, tzinfo=UTC)
    await publisher.publish([route("a", asleep=since)], serving=serving())
    assert set(_clusters(publisher)) == {"uid-a", "uid-a/front-proxy", "uid-a/changes", "uid-a/front-proxy-changes"}
    assert "/clusters/a/control-plane" not in Path(publisher.layout.routes).read_text()
    asked, clusters = len(judge.asked), _snapshot(publisher)["clusters/clusters.json"]
    await publisher.publish([route("a", asleep=since, requested=since)], serving=serving())
    await publisher.publish([route("a")], serving=serving())
    assert "/clusters/a/control-plane" in Path(publisher.layout.routes).read_text()
    assert len(judge.asked) == asked
    assert _snapshot(publisher)["clusters/clusters.json"] == clusters


async def test_clusters_of_a_route_that_goes_stay_until_prune(publisher: Publisher) -> None:
    """A busy control plane falls asleep: a request by the former table gets no 503."""
    await publisher.publish([route("a"), route("b")], serving=serving())
    published = await publisher.publish([route("a")], serving=serving())
    assert "/clusters/b/" not in Path(publisher.layout.routes).read_text()
    assert {"uid-a", "uid-b", "uid-b/changes"} <= set(_clusters(publisher))
    # Until Envoy confirms, other publications keep them too.
    published = await publisher.publish([route("a"), route("c")], serving=serving())
    assert published.leaving
    assert "uid-b" in _clusters(publisher)
    pruned = await publisher.prune(published.versions)
    assert set(_clusters(publisher)) & {"uid-a", "uid-b", "uid-c"} == {"uid-a", "uid-c"}
    assert pruned.routes == published.versions.routes
    assert pruned.clusters in Path(publisher.layout.clusters).read_text()
    assert not (await publisher.publish([route("a"), route("c")], serving=serving())).leaving


async def test_route_that_comes_back_before_prune_keeps_its_clusters(publisher: Publisher) -> None:
    await publisher.publish([route("a")], serving=serving())
    assert (await publisher.publish([], serving=serving())).leaving
    published = await publisher.publish([route("a", port=7)], serving=serving())
    assert not published.leaving
    assert '"port_value": 7' in json.dumps(_clusters(publisher)["uid-a"])
