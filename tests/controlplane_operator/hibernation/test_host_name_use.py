"""Use of control planes with host names, by the request counts of their API servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane, EndpointStyle
from kplane.api.names import LAST_USED_ANNOTATION
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.hibernation import host_name_use
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse, UseUnknown, is_counted
from kplane.controlplane_operator.tenant.flow_schemas import count_user_requests
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ApiError, ClusterConfig, NotFound, ProviderError, Unreachable

GATEWAY = Gateway("https://api.example.org", b"", "kplane-gateway", domain="cp.example.org")
HEADER = (
    "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests,"
    " RejectedRequests, TimedoutRequests, CancelledRequests\n"
)


def _row(level: str, executed: int) -> str:
    return f"{level},         0,            true,   false,       3,               4,    {executed},  5,  6,  7\n"


def _table(**executed: int) -> str:
    """Return a table as an API server writes it. Names of priority levels have dashes."""
    return HEADER + "".join(_row(level.replace("_", "-"), count) for level, count in executed.items())


def test_count_adds_priority_levels_of_users_only() -> None:
    table = _table(catch_all=10, exempt=300, kplane=70, global_default=2, workload_low=5, node_high=1, of_a_tenant=4)
    assert count_user_requests(table) == 12


@pytest.mark.parametrize(
    "table", ["", "<html>", HEADER + "global-default, 0\n", HEADER + _row("x", 1).replace(" 1,", " many,")]
)
def test_count_raises_value_error_for_invalid_table(table: str) -> None:
    with pytest.raises(ValueError):
        count_user_requests(table)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"endpointStyle": "HostName"}, True),
        ({"endpointStyle": "Path"}, False),
        ({}, False),
        ({"endpointStyle": "HostName", "virtual": {"start": "Always"}}, False),
        ({"endpointStyle": "HostName", "endpointPolicy": "Both"}, False),
    ],
)
def test_use_is_counted_with_host_name_and_start_on_demand(spec: dict[str, Any], *, expected: bool) -> None:
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": spec})
    assert is_counted(control_plane, chosen=None, gateway=GATEWAY) is expected
    assert not is_counted(control_plane, chosen=None, gateway=None)


class World:
    """A control plane whose API servers answer in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, replicas: int = 1) -> None:
        self.answers: list[tuple[str, int]] = [("10.0.0.1:6443", 0)]
        self.error: Exception | None = None
        self.asked = 0
        self.broken = False
        self.stores = Stores()
        self._version = 1
        context = SimpleNamespace(client=self, stores=self.stores, connections=None, gateway=GATEWAY)
        self.use = HostNameUse(cast("OperatorContext", context), replicas=replicas)
        monkeypatch.setattr(self.use, "_ask", self._ask)
        monkeypatch.setattr(host_name_use, "config_of", lambda _: ClusterConfig("https://acme"))
        self.note(None)

    def note(self, used: datetime | None) -> None:
        self._version += 1
        annotations = {LAST_USED_ANNOTATION: used.isoformat()} if used is not None else {}
        metadata = {"name": "acme", "uid": "1", "resourceVersion": str(self._version), "annotations": annotations}
        self.stores.control_planes.apply({"metadata": metadata, "spec": {"endpointStyle": EndpointStyle.HOST_NAME}})

    async def patch(self, _: object, name: str, body: dict[str, Any]) -> dict[str, Any]:
        assert (name, body["metadata"]["uid"]) == ("acme", "1")
        if self.broken:
            raise Unreachable("no route to host", kind="connect")
        self.note(datetime.fromisoformat(body["metadata"]["annotations"][LAST_USED_ANNOTATION]))
        return self.stores.control_planes.get(("", "acme")) or {}

    async def _ask(self, _: ClusterConfig) -> tuple[str, int]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.answers[self.asked % len(self.answers)]

    async def observe(self, *counts: int) -> datetime | None:
        """Observe the use when each API server has executed its number of requests of users."""
        self.answers = [(f"10.0.0.{number}:6443", count) for number, count in enumerate(counts)]
        return await self.use.observe(self.control_plane())

    def control_plane(self) -> ControlPlane:
        return ControlPlane.model_validate(self.stores.control_planes.get(("", "acme")))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_observe_reports_use_if_the_count_has_changed(world: World) -> None:
    assert await world.observe(0) is None
    used = await world.observe(3)
    assert used is not None
    assert world.control_plane().metadata.annotations == {LAST_USED_ANNOTATION: used.isoformat()}
    earlier = used - timedelta(minutes=5)
    world.note(earlier)
    assert await world.observe(3) == earlier
    # A restarted API server counts from zero.
    assert await world.observe(1) not in {earlier, None}


async def test_first_observe_reports_use_if_count_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await World(monkeypatch).observe(7) is not None
    assert await World(monkeypatch).observe(0) is None


async def test_observe_sends_no_request_within_a_minute_after_use(world: World) -> None:
    used = datetime.now(UTC) - timedelta(seconds=50)
    world.note(used)
    assert (await world.observe(3), world.asked) == (used, 0)
    world.note(used - timedelta(seconds=11))
    assert await world.observe(3) not in {used, None}


async def test_observe_with_stale_object_returns_use_in_cache(world: World) -> None:
    read_before = world.control_plane()
    used = await world.observe(3)
    assert used is not None
    world.note(used - timedelta(minutes=1))
    assert await world.use.observe(read_before) == used - timedelta(minutes=1)


async def test_observe_reports_use_again_after_failed_write(world: World) -> None:
    world.broken = True
    with pytest.raises(ProviderError):
        await world.observe(3)
    world.broken = False
    assert await world.observe(3) is not None


async def test_observe_after_forget_counts_from_zero(world: World) -> None:
    await world.observe(3)
    world.use.forget("1")
    world.note(None)
    assert await world.observe(0) is None


async def test_observe_reports_use_of_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, replicas=2)
    assert await world.observe(0, 0) is None
    assert await world.observe(0, 1) is not None


async def test_observe_raises_if_a_replica_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, replicas=2)
    with pytest.raises(UseUnknown, match="reached 1 of 2 API servers"):
        await world.observe(0)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NotFound(404, "NotFound", "no such path"), "switches API Priority and Fairness off"),
        (ApiError(500, "InternalError", "broken"), "cannot find out whether it is used: .*broken"),
        (Unreachable("no route to host", kind="connect"), "cannot find out whether it is used: no route to host"),
        (ValueError("no such column"), "cannot find out whether it is used: no such column"),
    ],
)
async def test_observe_raises_if_the_count_cannot_be_read(world: World, error: Exception, message: str) -> None:
    world.error = error
    with pytest.raises(UseUnknown, match=message):
        await world.observe(0)
