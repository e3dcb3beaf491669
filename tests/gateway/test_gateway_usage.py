"""Detection of used control planes, and reports of their last use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api.names import LAST_USED_ANNOTATION
from kplane.gateway.control_planes import may_sleep
from kplane.gateway.usage import Usage, UsageReporter
from kplane.provider import Client, Informer, ProviderError

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ON_DEMAND = {"virtual": {"start": "OnDemand"}}
SLEEP = {"hibernation": {"since": "2026-11-23T12:00:00Z"}}


def test_usage_finds_control_planes_with_requests_or_watches() -> None:
    usage = Usage()
    before = {
        "cluster.uid-a.upstream_rq_completed": 3,
        "cluster.uid-a/front-proxy.upstream_rq_completed": 4,
        "cluster.uid-b.upstream_rq_completed": 1,
        "cluster.uid-b.upstream_rq_active": 0,
        "cluster.uid-c.upstream_rq_total": 0,
        "cluster.uid-c.upstream_cx_active": 7,
        "cluster_manager.active_clusters": 3,
    }
    assert usage.look(before) == {"uid-a", "uid-b"}
    assert usage.look(before) == set()
    assert usage.look(before | {"cluster.uid-a/front-proxy.upstream_rq_completed": 5}) == {"uid-a"}
    assert usage.look(before | {"cluster.uid-b.upstream_rq_active": 1}) == {"uid-a", "uid-b"}
    # A restarted Envoy counts from zero.
    assert usage.look({"cluster.uid-a.upstream_rq_completed": 1}) == {"uid-a"}


def test_usage_ignores_401_answers() -> None:
    usage = Usage()
    usage.look({"cluster.uid-a.upstream_rq_total": 1, "cluster.uid-a.upstream_rq_completed": 1})
    counters = {
        "cluster.uid-a.upstream_rq_total": 9,
        "cluster.uid-a.upstream_rq_completed": 8,
        "cluster.uid-a.upstream_rq_401": 7,
    }
    assert usage.look(counters) == set()
    assert usage.look(counters | {"cluster.uid-a.upstream_rq_completed": 9}) == {"uid-a"}


def test_usage_ignores_requests_without_a_credential() -> None:
    anonymous = {"cluster.uid-a/anonymous.upstream_rq_completed": 9, "cluster.uid-a/anonymous.upstream_rq_active": 1}
    assert Usage().look(anonymous) == set()


def test_usage_ignores_connections_to_a_host_name() -> None:
    connections = {"cluster.uid-a/connections.upstream_rq_total": 9, "cluster.uid-a/connections.upstream_rq_active": 1}
    assert Usage().look(connections) == set()


def test_usage_ignores_requests_to_authorizer() -> None:
    assert Usage().look({"cluster.authorizer.upstream_rq_completed": 9}) == set()


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        (ON_DEMAND, {}, True),
        (ON_DEMAND, SLEEP, False),
        ({"virtual": {"start": "Always"}}, {"conditions": [{"type": "Hibernated"}]}, False),
        ({}, {"conditions": [{"type": "Ready"}, {"type": "Hibernated"}]}, True),
        ({}, {"conditions": [{"type": "Ready"}]}, False),
        ({"mode": "Dedicated"}, {}, False),
        (ON_DEMAND | {"endpointRef": {"name": "theirs"}}, {}, False),
    ],
)
def test_may_sleep_is_false_for_control_plane_that_never_sleeps(spec: Any, status: Any, *, expected: bool) -> None:
    assert may_sleep({"metadata": {}, "spec": spec, "status": status}) is expected


class World:
    """Control planes of a management cluster, and the annotations that gateways write."""

    def __init__(self, *names: str) -> None:
        self.now = NOW
        self.written: list[str] = []
        self.broken = False
        self.objects = {
            name: {"metadata": {"name": name, "uid": f"uid-{name}", "annotations": {}}, "spec": ON_DEMAND}
            for name in names
        }

    def reporter(self) -> UsageReporter:
        async def nothing() -> dict[str, int]:
            return {}

        return UsageReporter(
            cast("Client", self),
            cast("Informer", self),
            numbers=nothing,
            interval_seconds=60,
            clock=lambda: self.now,
        )

    def entries(self) -> list[Any]:
        return [SimpleNamespace(name=name, uid=f"uid-{name}") for name in self.objects]

    def get(self, name: str) -> dict[str, Any] | None:
        return self.objects.get(name)

    async def patch(self, _: Any, name: str, body: dict[str, Any]) -> None:
        if self.broken:
            raise ProviderError("no route to host")
        assert body["metadata"].pop("uid") == f"uid-{name}"
        self.written.append(name)
        self.objects[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]

    def last_use(self, name: str) -> datetime:
        return datetime.fromisoformat(self.objects[name]["metadata"]["annotations"][LAST_USED_ANNOTATION])

    async def look(self, *reporters: UsageReporter, seconds: float = 10.0, **totals: int) -> list[str]:
        """Advance the clock, and let gateways read counters of Envoy. Returns the annotated control planes."""
        self.now += timedelta(seconds=seconds)
        self.written = []
        for reporter in reporters:
            await reporter.look({f"cluster.uid-{name}.upstream_rq_completed": total for name, total in totals.items()})
        return self.written


async def test_usage_reporter_writes_first_use_then_once_per_interval() -> None:
    world = World("acme")
    gateway = world.reporter()
    assert await world.look(gateway) == []
    assert await world.look(gateway, acme=1) == ["acme"]
    first = world.last_use("acme")
    assert first == world.now
    writes = [await world.look(gateway, acme=2 + number) for number in range(6)]
    assert writes == [[], [], [], [], [], ["acme"]]
    assert world.last_use("acme") == world.now == first + timedelta(minutes=1)
    # A use within the interval is written at the end of the interval, with the time of the use.
    assert await world.look(gateway, acme=9) == []
    use_time = world.now
    assert [await world.look(gateway, acme=9) for _ in range(5)][-1] == ["acme"]
    assert world.last_use("acme") == use_time
    assert await world.look(gateway, seconds=600, acme=9) == []


async def test_use_is_written_once_by_two_gateways() -> None:
    world = World("acme")
    first_gateway, second_gateway = world.reporter(), world.reporter()
    assert await world.look(first_gateway, second_gateway, acme=1) == ["acme"]
    assert await world.look(first_gateway, second_gateway, acme=2) == []
    assert await world.look(first_gateway, second_gateway, seconds=60, acme=3) == ["acme"]


async def test_usage_reporter_retries_failed_write_at_next_look() -> None:
    world = World("acme", "globex")
    gateway, world.broken = world.reporter(), True
    assert await world.look(gateway, acme=1, globex=1) == []
    use_time, world.broken = world.now, False
    assert sorted(await world.look(gateway, acme=1, globex=1)) == ["acme", "globex"]
    assert world.last_use("acme") == use_time


async def test_usage_reporter_replaces_invalid_or_future_time() -> None:
    world = World("acme")
    for wrong in ("soon", (NOW + timedelta(hours=1)).isoformat()):
        world.objects["acme"]["metadata"]["annotations"] = {LAST_USED_ANNOTATION: wrong}
        assert await world.look(world.reporter(), acme=1) == ["acme"]
        assert world.last_use("acme") == world.now


async def test_usage_reporter_spreads_writes_and_starts_with_stalest() -> None:
    names = [f"c{number:03}" for number in range(120)]
    world = World(*names)
    gateway = world.reporter()
    stale = (NOW - timedelta(hours=1)).isoformat()
    for name in names[60:]:
        world.objects[name]["metadata"]["annotations"] = {LAST_USED_ANNOTATION: stale}
    looks = [await world.look(gateway, **dict.fromkeys(names, 1 + number)) for number in range(12)]
    assert [len(look) for look in looks] == [20] * 12
    assert {name for look in looks[:3] for name in look} == set(names[:60])
    assert looks[6:] == looks[:6]


async def test_usage_reporter_ignores_deleted_control_planes() -> None:
    world = World("acme")
    gateway = world.reporter()
    assert await world.look(gateway, acme=1, gone=1) == ["acme"]
    del world.objects["acme"]
    assert await world.look(gateway, seconds=60, acme=2) == []


async def test_usage_reporter_writes_use_once_after_clock_is_set_back() -> None:
    world = World("acme")
    gateway = world.reporter()
    await world.look(gateway, acme=0)
    world.broken = True
    await world.look(gateway, acme=1)
    world.broken = False
    world.now -= timedelta(days=2)
    writes = [await world.look(gateway, acme=1) for _ in range(3)]
    assert writes == [["acme"], [], []]
    assert world.last_use("acme") <= world.now
