"""What the gateway's controller has Envoy do when control planes come, wake and go."""

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
    """Takes what Envoy would serve; those that sleep are not wanted."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self.applied: list[list[str]] = []
        self.asked = 0
        self.serves = True

    def know(self, routes: Iterable[Route]) -> None:
        self.known = [each.cluster_path for each in routes]

    def wanted(self, routes: Iterable[Route]) -> list[Route]:
        return [each for each in routes if each.asleep is None]

    async def apply(self, routes: Sequence[Route], *, serving: Any) -> Mapping[str, str]:
        self.know(routes)
        self.applied.append([each.cluster_path for each in self.wanted(routes)])
        return {}

    def update(self, changed: Mapping[str, Route | None]) -> None:
        pass

    def concerns_envoy(self, changed: Mapping[str, Route | None]) -> bool:
        return any(each is not None and each.asleep is None for each in changed.values())

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


async def test_envoy_hears_nothing_of_those_that_sleep(plane: Plane, passes: Any, clock: list[float]) -> None:
    awake = route("awake")
    await passes(awake)
    asked = plane.asked
    controller = await passes(awake, asleep("one"), asleep("two"))
    assert (plane.applied, plane.asked) == ([["awake"]], asked)
    assert plane.known == [each.cluster_path for each in controller.routes] == ["awake", "one", "two"]


async def test_envoy_hears_of_each_that_wakes_or_sleeps(plane: Plane, passes: Any, clock: list[float]) -> None:
    await passes(asleep("one"))
    await passes(route("one"))
    await passes(asleep("one"))
    assert plane.applied == [[], ["one"], []]


async def test_envoy_is_told_again_what_it_lost(plane: Plane, passes: Any, clock: list[float]) -> None:
    awake = route("awake")
    await passes(awake)
    plane.serves = False
    clock[0] += 5.0
    await passes(awake)
    assert len(plane.applied) == 1, "its answer counts for a while"
    clock[0] += 5.0
    with pytest.raises(AssertionError):
        await passes(awake)
    assert len(plane.applied) == 2


class Table:
    """Has what a test says that has changed."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.progress = Progress()

    def change(self, version: int, *routes: Route) -> None:
        self._next, self.routes = Progress(version, version), [*self.routes, *routes]
        self._changed: dict[str, Route | None] = {each.cluster_path: each for each in routes}

    def renew(self) -> Mapping[str, Route | None]:
        changed, self._changed, self.progress = self._changed, {}, self._next
        return changed


@pytest.fixture
def table(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr(controller, "_table", made)
    made.change(1, route("old"))
    return made


async def test_controller_serves_nothing_before_envoy_confirms_the_first_routes(
    controller: Controller, table: Table, plane: Plane
) -> None:
    plane.serves = False
    assert not await controller._pass()
    assert controller.served is None
    plane.serves = True
    assert await controller._pass()
    assert controller.served == (1, 1)


async def test_controller_serves_new_path_as_soon_as_requests_wait_for_it(controller: Controller, table: Table) -> None:
    assert await controller._pass()
    table.change(2, asleep("new"))
    controller._renew()
    assert controller.served == (2, 2)


async def test_controller_serves_changed_address_when_envoy_confirms_it(
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
