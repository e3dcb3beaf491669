"""Valid reconcile functions, and the cluster that they receive."""

from __future__ import annotations

import functools

import pytest

from kplane.provider import ClusterConfig, Manager, ProviderError, Request
from kplane.provider.controllers.builder import controller
from kplane.provider.controllers.sources import Channel

LOCAL = ClusterConfig("https://127.0.0.1:1")


async def of_request(request):
    return None


async def of_both(request, cluster):
    return None


def delegate(function):
    @functools.wraps(function)
    def within(*args):
        return function(*args)

    return within


class Reconciler:
    async def __call__(self, request, cluster):
        return None

    async def method(self, request):
        return None


@pytest.mark.parametrize(
    "reconcile",
    [
        of_request,
        of_both,
        Reconciler(),
        Reconciler().method,
        functools.partial(of_both, cluster=None),
        functools.partial(functools.partial(of_both)),
        delegate(of_both),
    ],
    ids=["request", "both", "object", "method", "bound", "partial", "decorated"],
)
async def test_build_accepts_functions_of_request_and_cluster(reconcile):
    assert controller(Manager(LOCAL, name="test")).for_("v1/Pod").build(reconcile).name == "pod"


def plain(request):
    return None


async def of_none():
    return None


async def of_three(request, cluster, more):
    return None


@pytest.mark.parametrize(
    ("reconcile", "why"),
    [
        (plain, "plain is no coroutine function: define it by `async def`"),
        (lambda request: None, "<lambda> is no coroutine function"),
        (of_none, "of_none cannot be called with a request, nor with a request and its cluster"),
        (of_three, "of_three cannot be called with a request"),
        ("reconcile", "'reconcile' cannot be called: give build"),
    ],
)
async def test_build_refuses_an_invalid_reconcile_function(reconcile, why):
    manager = Manager(LOCAL, name="test")
    with pytest.raises(ProviderError, match=why):
        controller(manager).for_("v1/Pod").build(reconcile)
    assert manager.controllers == {}


async def test_reconcile_function_receives_the_cluster(manager, fake_cluster, eventually, fleet):
    seen = []

    async def reconcile(request, cluster):
        seen.append((request.name, cluster.name))

    controller(manager).for_("v1/ConfigMap").build(reconcile)
    async with fleet(manager) as given:
        for name in ("a", "b"):
            cluster = fake_cluster(name)
            cluster.maps.put(f"map-{name}")
            await given.add_or_replace(cluster)
        await eventually(lambda: sorted(seen), lambda found: found == [("map-a", "a"), ("map-b", "b")])


async def test_reconcile_that_returns_a_dict_fails_with_the_remedy(manager, fake_cluster, eventually, fleet, caplog):
    async def reconcile(request, cluster):
        return {"kind": "Status"}

    built = controller(manager).for_("v1/ConfigMap").build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        cluster.maps.put("map")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.stats.by_cluster.get("a"))
        await eventually(lambda: caplog.text, lambda text: "returned dict: let it return None or a Result" in text)
    assert "Traceback" not in caplog.text


async def test_request_of_a_missing_cluster_is_dropped(manager, eventually, fleet):
    async def reconcile(request, cluster):
        raise AssertionError(cluster)

    channel = Channel()
    built = controller(manager).named("x").watches_raw(channel).build(reconcile)
    async with fleet(manager):
        channel.put(Request("missing", "", "x"))
        await eventually(lambda: built.stats.dropped["not_found"], lambda count: count == 1)
    assert not built.stats.by_cluster.get("missing")
