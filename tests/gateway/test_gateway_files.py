"""Files for Envoy: their content, the order of writes, and routes that Envoy refuses."""

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
    """Validator in place of Envoy. Refuses a configuration that contains a port of its list."""

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
    publisher = Publisher(tmp_path / "gateway", validate=judge)
    await publisher.prepare()
    return publisher


def _snapshot(publisher: Publisher) -> dict[str, tuple[int, bytes]]:
    root = Path(publisher.layout.directory)
    return {
        str(file.relative_to(root)): (file.stat().st_ino, file.read_bytes())
        for file in root.rglob("*")
        if file.is_file()
    }


async def test_publish_of_equal_routes_skips_write_and_validation(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    before, validations = _snapshot(publisher), len(judge.asked)
    await publisher.publish([route("b"), route("a")], serving=serving())
    assert _snapshot(publisher) == before
    assert len(judge.asked) == validations


async def test_publish_validates_only_changed_routes(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    assert judge.clusters() == {"uid-a", "uid-b"}
    await publisher.publish([route("a"), route("b", port=7), route("c")], serving=serving())
    assert judge.clusters() == {"uid-b", "uid-c"}


async def test_publish_of_moved_api_server_changes_only_its_clusters(publisher: Publisher) -> None:
    await publisher.publish([route("a"), route("b")], serving=serving())
    before, clusters = _snapshot(publisher), _clusters(publisher)
    await publisher.publish([route("a"), route("b", port=7)], serving=serving())
    after = _snapshot(publisher)
    assert {name for name in after if after[name] != before.get(name)} == {"clusters/clusters.json"}
    changed = {name for name, cluster in _clusters(publisher).items() if cluster != clusters[name]}
    assert changed == {"uid-b", "uid-b/front-proxy", "uid-b/changes", "uid-b/front-proxy-changes"}


def _clusters(publisher: Publisher) -> dict[str, Any]:
    resources = json.loads(Path(publisher.layout.clusters).read_text())["resources"]
    return {cluster["name"]: cluster for cluster in resources}


async def test_publish_keeps_former_state_of_refused_route(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a")], serving=serving())
    judge.refuses = {13}
    routes = [route("a", port=13), route("b"), route("c", port=13)]
    published = await publisher.publish(routes, serving=serving())
    assert set(published.refused) == {"uid-a", "uid-c"}
    assert published.routes[:2] == [route("a"), route("b")]
    assert published.routes[2].upstream is None
    clusters = _clusters(publisher)
    assert '"port_value": 6443' in json.dumps(clusters["uid-a"])
    assert "uid-b" in clusters
    assert "uid-c" not in clusters
    # Each publication validates a refused route again.
    judge.refuses = set()
    assert (await publisher.publish(routes, serving=serving())).refused == {}


async def test_publish_of_refused_listener_writes_no_file(publisher: Publisher, judge: Judge) -> None:
    await publisher.publish([route("a")], serving=serving())
    before = _snapshot(publisher)
    judge.refuses = {666}
    with pytest.raises(ConfigurationRejected):
        await publisher.publish([route("b")], serving=dataclasses.replace(serving(), port=666))
    assert _snapshot(publisher) == before


async def test_prune_removes_clusters_of_absent_control_planes(publisher: Publisher) -> None:
    absent_route = Route(key="uid-c", cluster_path="c", upstream=None)
    await publisher.publish([route("a"), route("b"), route("c")], serving=serving())
    published = await publisher.publish([route("a"), absent_route], serving=serving())
    assert published.leaving
    await publisher.prune(published.versions)
    assert set(_clusters(publisher)) == {"uid-a", "uid-a/front-proxy", "uid-a/changes", "uid-a/front-proxy-changes"}


async def test_publish_writes_constant_number_of_watched_files(publisher: Publisher) -> None:
    """Each watched file takes one of the 128 inotify instances of a user. Without an instance, Envoy aborts."""
    await publisher.publish([route(f"r{number}") for number in range(50)], serving=serving())
    files = [file for file in Path(publisher.layout.directory).rglob("*.json") if file.name != "bootstrap.json"]
    assert len(files) == 5


async def test_published_files_are_accessible_to_owner_only(publisher: Publisher) -> None:
    await publisher.publish([route("a")], serving=serving())
    root = Path(publisher.layout.directory)
    assert {file.stat().st_mode & 0o077 for file in (root, *root.rglob("*"))} == {0}


async def test_publish_succeeds_after_interrupted_publication(
    publisher: Publisher, judge: Judge, tmp_path: Path
) -> None:
    await publisher.publish([route("a")], serving=serving())
    (Path(publisher.layout.routes).with_name(".routes.json.new")).write_text("half of")
    second_publisher = Publisher(tmp_path / "gateway", validate=judge)
    await second_publisher.prepare()
    published = await second_publisher.publish([route("a"), route("b")], serving=serving())
    assert published.versions.routes in Path(second_publisher.layout.routes).read_text()


async def test_publish_validates_sleeping_route_before_wake(publisher: Publisher, judge: Judge) -> None:
    since = datetime(2026, 11, 23, tzinfo=UTC)
    await publisher.publish([route("a", asleep=since)], serving=serving())
    assert set(_clusters(publisher)) == {"uid-a", "uid-a/front-proxy", "uid-a/changes", "uid-a/front-proxy-changes"}
    assert "/clusters/a/control-plane" not in Path(publisher.layout.routes).read_text()
    validations, clusters = len(judge.asked), _snapshot(publisher)["clusters/clusters.json"]
    await publisher.publish([route("a", asleep=since, requested=since)], serving=serving())
    await publisher.publish([route("a")], serving=serving())
    assert "/clusters/a/control-plane" in Path(publisher.layout.routes).read_text()
    assert len(judge.asked) == validations
    assert _snapshot(publisher)["clusters/clusters.json"] == clusters


async def test_clusters_of_removed_route_stay_until_prune(publisher: Publisher) -> None:
    """A request by the former route table gets no 503 when a busy control plane falls asleep."""
    await publisher.publish([route("a"), route("b")], serving=serving())
    published = await publisher.publish([route("a")], serving=serving())
    assert "/clusters/b/" not in Path(publisher.layout.routes).read_text()
    assert {"uid-a", "uid-b", "uid-b/changes"} <= set(_clusters(publisher))
    # Further publications keep the clusters until Envoy confirms the removal.
    published = await publisher.publish([route("a"), route("c")], serving=serving())
    assert published.leaving
    assert "uid-b" in _clusters(publisher)
    pruned = await publisher.prune(published.versions)
    assert set(_clusters(publisher)) & {"uid-a", "uid-b", "uid-c"} == {"uid-a", "uid-c"}
    assert pruned.routes == published.versions.routes
    assert pruned.clusters in Path(publisher.layout.clusters).read_text()
    assert not (await publisher.publish([route("a"), route("c")], serving=serving())).leaving


async def test_route_restored_before_prune_keeps_its_clusters(publisher: Publisher) -> None:
    await publisher.publish([route("a")], serving=serving())
    assert (await publisher.publish([], serving=serving())).leaving
    published = await publisher.publish([route("a", port=7)], serving=serving())
    assert not published.leaving
    assert '"port_value": 7' in json.dumps(_clusters(publisher)["uid-a"])
