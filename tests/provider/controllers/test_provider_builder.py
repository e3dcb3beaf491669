"""The builder: valid and invalid controllers, and the clusters in which each kind is watched."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import pytest

from kplane.provider import ClusterConfig, Leader, Manager, ProviderError, Request, Resource
from kplane.provider.client.resources import CONFIG_MAPS, REPLICA_SETS
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.builder import controller, engage, every_owner, metadata_only, predicates
from kplane.provider.controllers.handlers import enqueue_object, enqueue_owner
from kplane.provider.controllers.multicluster import MulticlusterController
from kplane.provider.controllers.predicates import on_events
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.sources import Channel

LOCAL = ClusterConfig("https://127.0.0.1:1")


class Nothing:
    """A provider without clusters."""

    name = "nothing"

    async def run(self, fleet):
        await asyncio.Event().wait()


async def reconcile(request):
    return None


@pytest.fixture
def manager():
    return Manager(LOCAL, Nothing(), workers=3, group_kind_concurrency={"ReplicaSet.apps": 4, "Pod": 7}, name="test")


async def watched(built, cluster):
    """Return the kinds that a controller watches in a cluster."""
    engagement = Engagement(cluster, generation=1)
    try:
        await (built.engage(engagement) if cluster.name else built.engage_local(engagement))
        return sorted(kind for kind, _ in cluster.asked)
    finally:
        await engagement.aclose()


def test_builder_with_for_and_owns_builds_a_controller(manager):
    """Criterion 1: valid For + Owns builds; returns a controller."""
    built = controller(manager).for_("apps/v1/Deployment").owns("apps/v1/ReplicaSet").build(reconcile)
    assert isinstance(built, MulticlusterController)
    assert (built.name, manager.controllers) == ("deployment", {"deployment": built})


def test_builder_refuses_a_second_for(manager):
    """Criterion 2: a second For is an error."""
    with pytest.raises(ProviderError, match="only be called once"):
        controller(manager).for_("v1/Pod").for_("v1/Secret").build(reconcile)


def test_builder_without_for_needs_a_name(manager):
    """Criterion 3: no For and no name is an error."""
    with pytest.raises(ProviderError, match="no name"):
        controller(manager).watches("v1/Pod", enqueue_object()).build(reconcile)


def test_builder_refuses_owns_without_for(manager):
    """Criterion 4: Owns without For is an error."""
    with pytest.raises(ProviderError, match=r"for_\(\)"):
        controller(manager).named("x").owns("v1/Pod").build(reconcile)


def test_builder_refuses_a_controller_without_watches(manager):
    """Criterion 5: no watches is an error."""
    with pytest.raises(ProviderError, match="nothing to watch"):
        controller(manager).named("x").build(reconcile)


def test_builder_with_a_name_and_watches_builds(manager):
    """Criterion 6: a name and Watches only builds."""
    assert controller(manager).named("x").watches("v1/Pod", enqueue_object()).build(reconcile).name == "x"


@pytest.mark.parametrize("kind", ["ConfigMap", "", "a/b/c/d", "v1/"])
def test_builder_refuses_an_invalid_kind(manager, kind):
    """Criterion 7: a For kind that cannot be resolved is an error at build, with a remedy."""
    builder = controller(manager).named("x").for_(kind)
    with pytest.raises(ProviderError, match="written as"):
        builder.build(reconcile)
    assert manager.controllers == {}


class Job(NamedTuple):
    cluster: str
    number: int


def test_builder_refuses_for_with_custom_requests(manager):
    """Criterion 8: For and Owns with a custom request type are errors; with a raw source or own handler it builds."""
    with pytest.raises(ProviderError, match="not Job"):
        controller(manager, request=Job).for_("v1/Pod")
    built = (
        controller(manager, request=Job)
        .named("jobs")
        .watches("v1/Pod", lambda cluster, event: [Job(cluster.name, 1)])
        .watches_raw(Channel[Job]())
        .build(reconcile)
    )
    assert built.name == "jobs"


def test_build_raises_the_refusal_of_the_manager(manager, monkeypatch):
    """Criterion 9: an error of the controller's making comes out of build."""

    def refuse(what):
        raise ProviderError("no more controllers")

    monkeypatch.setattr(manager, "add", refuse)
    with pytest.raises(ProviderError, match="no more controllers"):
        controller(manager).for_("v1/Pod").build(reconcile)
    assert manager.controllers == {}


def test_workers_come_from_option_then_kind_then_manager(manager):
    """Criterion 10: the workers option wins; else group-kind concurrency applies, then the manager's default."""
    by_option = controller(manager).for_(REPLICA_SETS).named("a").with_options(workers=9).build(reconcile)
    by_kind = controller(manager).for_(REPLICA_SETS).build(reconcile)
    of_core = controller(manager).for_("v1/Pod").build(reconcile)
    by_default = controller(manager).for_(CONFIG_MAPS).build(reconcile)
    assert [each.workers for each in (by_option, by_kind, of_core, by_default)] == [9, 4, 7, 3]


async def test_rate_limiter_and_logger_reach_the_controller(manager, eventually, caplog):
    """Criterion 11: a custom rate limiter and logger reach the controller."""
    limiter, channel = ItemBackoff(initial_seconds=0.001, maximum_seconds=0.001), Channel()

    async def fail(request):
        raise ProviderError("no")

    built = (
        controller(manager)
        .named("x")
        .watches_raw(channel)
        .with_options(rate_limiter=limiter, logger=logging.getLogger("mine"))
        .build(fail)
    )
    channel.put(Job("", 1))
    running = asyncio.create_task(built.run())
    await eventually(lambda: limiter.failures(Job("", 1)), lambda failures: failures > 3)
    running.cancel()
    await asyncio.wait([running])
    assert {record.name for record in caplog.records if "failed" in record.message} == {"mine"}


def test_builder_refuses_two_reconcilers(manager):
    """Criterion 12: a reconciler given both in the options and to build is an error."""
    builder = controller(manager).for_("v1/Pod").with_options(reconcile=reconcile)
    with pytest.raises(ProviderError, match="give one of them"):
        builder.build(reconcile)
    assert builder.build().name == "pod"


def test_controllers_of_a_kind_need_distinct_names(manager):
    """Criterion 13: controllers of a kind coexist under different names. A second controller of a name is refused."""
    one = controller(manager).for_("v1/Pod").build(reconcile)
    with pytest.raises(ProviderError, match="another name"):
        controller(manager).for_("v1/Pod").build(reconcile)
    two = controller(manager).for_("v1/Pod").named("pods").build(reconcile)
    assert manager.controllers == {"pod": one, "pods": two}
    assert controller(Manager(None, Nothing(), name="test")).for_("v1/Pod").build(reconcile).name == "pod"


def test_builder_refuses_missing_reconciler_and_manager(manager):
    """Criterion 14: a nil reconciler and a nil manager are errors."""
    with pytest.raises(ProviderError, match="reconcile function"):
        controller(manager).for_("v1/Pod").build()
    with pytest.raises(ProviderError, match="manager"):
        controller(None)


async def test_engage_filter_excludes_provider_clusters_only(manager, fake_cluster):
    """Criterion 19: the filter is called for the local cluster but cannot block it; it holds for provider clusters."""
    asked = []

    def wanted(name, cluster):
        asked.append((name, cluster.name))
        return name == "a"

    built = controller(manager).for_("v1/Pod", engage(local=True, filter=wanted)).build(reconcile)
    assert [await watched(built, fake_cluster(name)) for name in ("", "a", "b")] == [["Pod"], ["Pod"], []]
    assert asked == [("", ""), ("a", "a"), ("b", "b")]


async def test_engage_options_are_merged_by_kind_and_field(manager, fake_cluster):
    """Criterion 20: local=True and provider=False both hold, merged field by field with the controller's."""
    built = (
        controller(manager)
        .for_("v1/Pod", engage(local=True), engage(provider=False))
        .owns("v1/Secret", engage(local=True))
        .watches("v1/Event", enqueue_object(), engage(filter=lambda name, cluster: name != "a"))
        .with_options(engage=engage(local=False))
        .with_options(engage=engage(filter=lambda name, cluster: name != "b"))
        .build(reconcile)
    )
    seen = {name: await watched(built, fake_cluster(name)) for name in ("", "a", "b", "c")}
    assert seen == {"": ["Pod", "Secret"], "a": ["Secret"], "b": ["Event"], "c": ["Event", "Secret"]}


@pytest.mark.parametrize(("provider", "local_on"), [(Nothing(), False), (None, True)])
async def test_local_cluster_is_watched_by_default_without_a_provider(provider, local_on, fake_cluster):
    """Criterion 21: provider set: local off, provider clusters on; none set: local on."""
    built = controller(Manager(LOCAL, provider, name="test")).for_("v1/Pod").build(reconcile)
    assert await watched(built, fake_cluster("")) == (["Pod"] if local_on else [])
    assert await watched(built, fake_cluster("a")) == ([] if local_on else ["Pod"])


async def test_engage_from_provider_limits_the_clusters(manager, fake_cluster):
    mine, other = Nothing(), Nothing()
    built = controller(manager).for_("v1/Pod", engage(from_provider=mine)).build(reconcile)
    for provider, kinds in ((mine, ["Pod"]), (other, [])):
        cluster = fake_cluster("a")
        cluster.note_origin(provider)
        assert await watched(built, cluster) == kinds


async def test_metadata_only_watches_request_metadata(manager, fake_cluster):
    built = (
        controller(manager)
        .for_("v1/Pod", metadata_only())
        .watches_metadata("v1/Secret", enqueue_owner("v1/Pod"))
        .watches("v1/Event", enqueue_owner("v1/Pod"))
        .build(reconcile)
    )
    cluster = fake_cluster("a")
    await watched(built, cluster)
    assert sorted(cluster.asked) == [("Event", False), ("Pod", True), ("Secret", True)]


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"per_cluster": 0},
        {"waiting": -1},
        {"grace_seconds": -1},
        {"timeout_seconds": 0},
    ],
)
def test_with_options_refuses_invalid_values(manager, options):
    with pytest.raises(ProviderError, match=r"cannot be"):
        controller(manager).for_("v1/Pod").with_options(**options)


def test_builder_refuses_options_of_other_watches(manager):
    with pytest.raises(ProviderError, match=r"only owns\(\)"):
        controller(manager).for_("v1/Pod", every_owner()).build(reconcile)
    with pytest.raises(ProviderError, match="handler"):
        controller(manager).named("x").watches("v1/Pod", None).build(reconcile)
    assert controller(manager).for_("v1/Pod", predicates(on_events(deleted=False))).build(reconcile)


def test_builder_accepts_a_resource_as_kind(manager):
    widgets = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
    assert controller(manager).for_(widgets).build(reconcile).name == "widget"


@pytest.mark.parametrize(
    ("config", "provider", "choice", "why"),
    [
        (None, None, engage(), "the manager has no cluster: give Manager a configuration, a provider, or both"),
        (None, Nothing(), engage(local=True), "the manager has no local cluster: give Manager its configuration"),
        (LOCAL, None, engage(provider=True), "the manager finds no clusters: give Manager a provider"),
        (LOCAL, None, engage(from_provider=Nothing()), "the manager finds no clusters"),
    ],
)
async def test_builder_refuses_clusters_that_the_manager_lacks(config, provider, choice, why):
    manager = Manager(config, provider, name="test")
    with pytest.raises(ProviderError, match=f"controller pod cannot watch v1/Pod: {why}"):
        controller(manager).for_("v1/Pod", choice).build(reconcile)
    assert manager.controllers == {}


async def test_manager_refuses_to_run_with_an_unbuilt_controller(manager):
    builder = controller(manager).for_("v1/Pod")
    with pytest.raises(ProviderError, match=r"controller v1/Pod is described, and not made: call build\(reconcile\)"):
        await manager.run(asyncio.Event())
    builder.build(reconcile)
    async with manager:
        assert list(manager.controllers) == ["pod"]


async def test_manager_refuses_a_controller_of_another_manager(manager):
    built = controller(Manager(LOCAL, name="test")).for_("v1/Pod").build(reconcile)
    with pytest.raises(ProviderError, match="controller pod was made for another manager"):
        manager.add(built)


def test_classes_in_place_of_instances_are_refused():
    with pytest.raises(ProviderError, match="Nothing is a class: give Manager an instance of it as the provider"):
        Manager(LOCAL, Nothing, name="test")
    with pytest.raises(ProviderError, match="Leader is a class: give Manager an instance of it as the coordinator"):
        Manager(LOCAL, coordinator=Leader, name="test")
    with pytest.raises(ProviderError, match="Manager is a class: give controller"):
        controller(Manager)


@pytest.mark.parametrize(("own", "expected"), [(None, 0.05), (0.01, 0.01)], ids=["the manager's", "its own"])
async def test_reconcile_timeout_comes_from_controller_or_manager(given, work, eventually, caplog, own, expected):
    channel = Channel()
    manager = Manager(None, given(), reconcile_timeout_seconds=0.05, name="test")
    builder = controller(manager).named("x").watches_raw(channel)
    built = builder.with_options(timeout_seconds=own).build(work.reconcile)
    work.gates["slow"] = asyncio.Event()
    async with manager:
        channel.put(Request("a", "ns", "slow"))
        await eventually(lambda: built.stats.timeouts)
    assert f"it took longer than {expected:g} s" in caplog.text


async def test_manager_refuses_a_reconcile_timeout_of_zero():
    with pytest.raises(ProviderError, match="a reconcile cannot be given 0 s"):
        Manager(None, reconcile_timeout_seconds=0, name="test")
