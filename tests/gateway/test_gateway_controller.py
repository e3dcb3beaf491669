"""Controller of the gateway: the routes that Envoy gets when control planes are added, woken and put to sleep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from kplane.gateway import controller as controller_module
from kplane.gateway.control_planes import Progress
from kplane.gateway.controller import Controller
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.routes import Route
from kplane.provider import Client, ClusterConfig

from .fleet import route


class Plane:
    """Records the routes that Envoy would serve. Routes of sleeping control planes are left out."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.applied: list[list[str]] = []
        self.asked = 0
        self.serves = True

    def know(self, routes: Iterable[Route]) -> None:
        self.known = [route.cluster_path for route in routes]

    def wanted(self, routes: Iterable[Route]) -> list[Route]:
        return [route for route in routes if route.asleep is None]

    async def apply(self, routes: Sequence[Route], *, serving: Any) -> Mapping[str, str]:
        self.know(routes)
        self.applied.append([route.cluster_path for route in self.wanted(routes)])
        return {}

    def update(self, changed: Mapping[str, Route | None]) -> None:
        pass

    def concerns_envoy(self, changed: Mapping[str, Route | None]) -> bool:
        return any(route is not None and route.asleep is None for route in changed.values())

    async def ready(self) -> bool:
        self.asked += 1
        return self.serves

    async def numbers(self) -> Mapping[str, int]:
        return {}


def asleep(name: str) -> Route:
    return route(name, asleep=datetime.now(UTC))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(f"{controller_module.__name__}.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest_asyncio.fixture
async def controller(monkeypatch: pytest.MonkeyPatch, plane: Plane, tmp_path: Path) -> AsyncIterator[Controller]:
    async def certificate(_: Path) -> Any:
        return "certificate"

    monkeypatch.setattr(controller_module, "read_certificate", certificate)
    async with Client(ClusterConfig(server="https://127.0.0.1:1")) as client:
        yield Controller(
            client,
            cast("DataPlane", plane),
            namespace="gateway",
            host="127.0.0.1",
            port=8443,
            certificates=tmp_path,
            usage_seconds=30.0,
        )


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch, controller: Controller) -> Any:
    async def run(*routes: Route) -> Controller:
        monkeypatch.setattr(controller, "_routes", lambda: list(routes))
        assert await controller._pass()
        return controller

    return run


async def test_controller_does_not_apply_when_sleeping_route_is_added(
    plane: Plane, passes: Any, clock: list[float]
) -> None:
    awake_route = route("awake")
    await passes(awake_route)
    ready_calls = plane.asked
    controller = await passes(awake_route, asleep("one"), asleep("two"))
    assert (plane.applied, plane.asked) == ([["awake"]], ready_calls)
    assert plane.known == [known_route.cluster_path for known_route in controller.routes] == ["awake", "one", "two"]


async def test_controller_applies_routes_when_control_plane_wakes_or_sleeps(
    plane: Plane, passes: Any, clock: list[float]
) -> None:
    await passes(asleep("one"))
    await passes(route("one"))
    await passes(asleep("one"))
    assert plane.applied == [[], ["one"], []]


async def test_controller_applies_routes_again_when_envoy_lost_them(
    plane: Plane, passes: Any, clock: list[float]
) -> None:
    awake_route = route("awake")
    await passes(awake_route)
    plane.serves = False
    clock[0] += 5.0
    await passes(awake_route)
    assert len(plane.applied) == 1, "its answer counts for a while"
    clock[0] += 5.0
    with pytest.raises(AssertionError):
        await passes(awake_route)
    assert len(plane.applied) == 2


class Table:
    """Route table whose changes a test sets."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.progress = Progress()

    def change(self, version: int, *routes: Route) -> None:
        self._next, self.routes = Progress(version, version), [*self.routes, *routes]
        self._changed: dict[str, Route | None] = {route.cluster_path: route for route in routes}

    def renew(self) -> Mapping[str, Route | None]:
        changed, self._changed, self.progress = self._changed, {}, self._next
        return changed


@pytest.fixture
def table(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(controller, "_table", table)
    table.change(1, route("old"))
    return table


async def test_controller_served_is_none_until_envoy_confirms_routes(
    controller: Controller, table: Table, plane: Plane
) -> None:
    plane.serves = False
    assert not await controller._pass()
    assert controller.served is None
    plane.serves = True
    assert await controller._pass()
    assert controller.served == (1, 1)


async def test_controller_counts_new_sleeping_route_as_served_at_once(controller: Controller, table: Table) -> None:
    assert await controller._pass()
    table.change(2, asleep("new"))
    controller._renew()
    assert controller.served == (2, 2)


async def test_controller_counts_changed_address_after_envoy_confirms(
    controller: Controller, table: Table, plane: Plane
) -> None:
    assert await controller._pass()
    seen: list[Progress | None] = []
    controller.on_served = lambda: seen.append(controller.served)
    table.change(2, route("moved"))
    controller._renew()
    table.change(3, asleep("new"))
    controller._renew()
    assert controller.served == (1, 1), "Envoy serves the former address"
    plane.serves = False
    assert not await controller._pass()
    assert controller.served == (1, 1)
    plane.serves = True
    assert await controller._pass()
    assert controller.served == (3, 3)
    assert seen[-1] == (3, 3)


async def test_controller_has_progress_after_watch_and_authorizer_reach_it(
    controller: Controller, table: Table, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[str] = []
    monkeypatch.setattr(plane, "update", updates.extend)
    versions = {"_control_planes": 5, "_secrets": 5}
    for name, version in versions.items():
        monkeypatch.setattr(controller, name, SimpleNamespace(version=version))
    assert not controller.has(Progress(6, 5))
    assert not controller.has(Progress(5, 6))
    assert updates == []
    # No object has this version: a list or a bookmark names it.
    assert controller.has(Progress(5, 5))
    assert updates == ["old"]
    # After a restore of the management cluster, its versions begin again below.
    table.change(9)
    assert controller.has(Progress(5, 5))
    assert controller.has(Progress(9, 9))
