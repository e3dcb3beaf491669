"""Requests to sleeping control planes: limits and timeouts of waiters, and wake-up requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.gateway.clients import Client
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Hold, Route
from kplane.gateway.waker import Waker
from kplane.provider import Unreachable
from kplane.provider.aio.backoff import Backoff

from .fleet import route

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


class Operator:
    """Records wake-up requests, and wakes no control plane."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, datetime]] = []
        self.fails = 0

    async def __call__(self, route: Route, at: datetime) -> None:
        self.asked.append((route.key, at))
        await asyncio.sleep(0)
        if len(self.asked) <= self.fails:
            raise Unreachable("the management cluster", kind="connect")


@pytest.fixture
def operator() -> Operator:
    return Operator()


def _waker(operator: Operator, **settings: Any) -> Waker:
    return Waker(operator, clock=lambda: NOW, **settings)


def _waiting(waker: Waker, key: str = "uid-a", *, number: int = 1) -> list[asyncio.Task[Route]]:
    return [asyncio.create_task(waker.passage(key)) for _ in range(number)]


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _code(waker: Waker, key: str = "uid-a") -> int:
    with pytest.raises(Declined) as caught:
        await waker.passage(key)
    return caught.value.code


async def test_waker_queues_changes_while_control_plane_is_held(operator: Operator) -> None:
    waker = _waker(operator, each_held=2)
    held_route = replace(route("a"), held=Hold(until=NOW + timedelta(minutes=1), asked="then"))
    waker.know([held_route])
    waker.reach(["uid-a"])
    await waker.passage("uid-a")
    changes = [asyncio.create_task(waker.passage("uid-a", change=True)) for _ in range(2)]
    await _turns()
    assert waker.waiting == 2
    with pytest.raises(Declined) as caught:
        await waker.passage("uid-a", change=True)
    assert caught.value.code == 429
    # The control plane has moved, and Envoy does not reach its new address yet.
    waker.reach([])
    waker.know([route("a")])
    await _turns()
    assert waker.waiting == 2
    waker.reach(["uid-a"])
    await asyncio.gather(*changes)
    assert operator.asked == []
    # The deadline of the hold has passed.
    waker.know([replace(held_route, held=Hold(until=NOW, asked="now"))])
    await waker.passage("uid-a", change=True)


async def test_waker_requests_one_wake_for_many_requests(operator: Operator) -> None:
    waker, changes = _waker(operator), []
    waker.changed = lambda: changes.append(waker.wants(sleeping_route))
    sleeping_route, other_route = route("a", asleep=EARLIER), route("b", asleep=EARLIER)
    waker.know([sleeping_route, other_route])
    assert not waker.wants(sleeping_route)
    requests = _waiting(waker, number=20)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    assert (waker.waiting, changes) == (20, [True])
    assert not waker.wants(other_route)
    # A status update of the operator triggers no second wake-up request.
    waker.know([route("a", asleep=EARLIER, requested=NOW), other_route])
    await _turns()
    waker.reach(["uid-a"])
    await _turns()
    assert not any(request.done() for request in requests)
    waker.know([route("a"), other_route])
    await asyncio.gather(*requests)
    assert len(operator.asked) == 1
    assert waker.waiting == 0


async def test_waker_releases_request_when_control_plane_is_reachable(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a")])
    (request,) = _waiting(waker)
    await _turns()
    assert not request.done()
    waker.reach(["uid-a"])
    await request
    await waker.passage("uid-a")
    assert operator.asked == []


async def test_waker_does_not_repeat_pending_wake_request(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER, requested=NOW - timedelta(seconds=1))])
    (request,) = _waiting(waker)
    await _turns()
    assert operator.asked == []
    # The control plane fell asleep again before the waker saw it awake.
    waker.know([route("a", asleep=NOW)])
    await _turns()
    assert operator.asked == [("uid-a", NOW + timedelta(microseconds=1))]
    request.cancel()
    await waker.aclose()


@pytest.mark.parametrize("requested", [EARLIER, NOW + timedelta(days=400)])
async def test_waker_requests_wake_despite_stale_or_future_request(operator: Operator, requested: datetime) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER, requested=requested)])
    requests = _waiting(waker)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    await waker.aclose()
    await asyncio.gather(*requests, return_exceptions=True)


async def test_waker_retries_failed_wake_request(operator: Operator, eventually: Callable[..., Any]) -> None:
    operator.fails = 2
    waker = _waker(operator, backoff=lambda: Backoff(initial_seconds=0.01, maximum_seconds=0.01))
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await eventually(lambda: len(operator.asked), lambda asked: asked >= 3)
    assert not request.done()
    waker.know([route("a", asleep=EARLIER, requested=NOW)])
    waker.reach(["uid-a"])
    waker.know([route("a")])
    await request


async def test_waker_keeps_backoff_when_clients_reconnect(operator: Operator) -> None:
    operator.fails = 100
    waker = _waker(operator, backoff=lambda: Backoff(initial_seconds=60.0, maximum_seconds=60.0))
    waker.know([route("a", asleep=EARLIER)])
    for _ in range(10):
        (request,) = _waiting(waker)
        await _turns()
        request.cancel()
        await _turns()
    assert len(operator.asked) == 1
    await waker.aclose()


async def test_waker_returns_503_after_timeout(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    waker.know([route("a", asleep=EARLIER)])
    assert await _code(waker) == 503
    assert waker.waiting == 0
    await waker.aclose()


def _failed(*, requested: datetime | None = None, failed: bool = True, problem: str = "Secret x is damaged") -> Route:
    sleeping_route = route("a", asleep=EARLIER, requested=requested)
    assert sleeping_route.asleep is not None
    return replace(sleeping_route, asleep=replace(sleeping_route.asleep, failed=failed, problem=problem))


async def _declined(waker: Waker) -> Declined:
    with pytest.raises(Declined) as caught:
        await waker.passage("uid-a")
    return caught.value


async def test_waker_returns_cause_when_wake_has_failed(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(milliseconds=10))
    waker.know([_failed()])
    declined = await _declined(waker)
    assert (declined.code, declined.is_retried) == (503, False)
    assert str(declined) == "this control plane cannot wake: Secret x is damaged"
    # The operator retries the wake-up, because a person may have removed the cause.
    assert operator.asked == [("uid-a", NOW)]
    assert waker.waiting == 0
    await waker.aclose()


async def test_waker_returns_503_at_once_when_earlier_request_is_old(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(seconds=30))
    waker.know([_failed(requested=NOW - timedelta(seconds=30))])
    async with asyncio.timeout(5):
        assert (await _declined(waker)).code == 503
    assert operator.asked == []
    await waker.aclose()


async def test_waker_holds_request_when_failed_control_plane_wakes(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(seconds=30))
    waker.know([_failed()])
    waker.reach(["uid-a"])
    (request,) = _waiting(waker)
    await _turns()
    waker.know([_failed(requested=NOW, failed=False, problem="")])
    await _turns()
    assert not request.done()
    waker.know([route("a")])
    await request


async def test_waker_declines_request_when_requested_wake_fails(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(0))
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    assert not request.done()
    waker.know([_failed(requested=NOW)])
    async with asyncio.timeout(5):
        with pytest.raises(Declined, match="Secret x is damaged"):
            await request
    await waker.aclose()


async def test_waker_returns_cause_when_wake_times_out(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    waker.know([_failed(failed=False, problem="waiting for kube-apiserver")])
    declined = await _declined(waker)
    assert (declined.code, declined.is_retried) == (503, True)
    assert str(declined).endswith("within 0 s: waiting for kube-apiserver")
    await waker.aclose()


async def test_waker_returns_429_when_control_plane_waits_for_room(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    sleeping_route = route("a", asleep=EARLIER)
    assert sleeping_route.asleep is not None
    waker.know([replace(sleeping_route, asleep=replace(sleeping_route.asleep, crowded=True))])
    assert await _code(waker) == 429
    await waker.aclose()


async def test_waker_returns_429_when_waiters_exceed_limit(operator: Operator) -> None:
    waker = _waker(operator, each=2)
    waker.know([route("a", asleep=EARLIER)])
    requests = _waiting(waker, number=2)
    await _turns()
    assert await _code(waker) == 429
    requests.pop().cancel()
    await _turns()
    requests += _waiting(waker)
    await _turns()
    assert waker.waiting == 2
    await waker.aclose()
    await asyncio.gather(*requests, return_exceptions=True)


async def test_waker_keeps_slots_of_hold_for_verified_requests(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([replace(route("a"), held=Hold(until=NOW + timedelta(minutes=1), asked="then"))])
    waker.reach(["uid-a"])

    def change(client: Client, *, verified: bool) -> asyncio.Task[Route]:
        return asyncio.create_task(waker.passage("uid-a", change=True, client=client, verified=verified))

    strangers = [Client(f"192.0.2.{number % 25}") for number in range(500)]
    flood_tasks = [change(stranger, verified=False) for stranger in strangers]
    await _turns()
    assert waker.waiting == 50
    user_tasks = [change(Client("192.0.2.0"), verified=True) for _ in range(450)]
    await _turns()
    assert waker.waiting == 500
    for declined in (task for task in flood_tasks if task.done()):
        with pytest.raises(Declined, match="without a verified credential") as caught:
            await declined
        assert caught.value.code == 429
    # The places of unverified requests are free again after these requests end.
    for task in flood_tasks:
        task.cancel()
    await _turns()
    assert waker.waiting == 450
    late_task = change(Client("192.0.2.1"), verified=False)
    await _turns()
    assert not late_task.done()
    await waker.aclose()
    await asyncio.gather(*user_tasks, late_task, return_exceptions=True)


async def test_waker_keeps_slots_for_other_control_planes_during_flood(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route(f"s{number}", asleep=EARLIER) for number in range(11)])
    flood_tasks = [task for number in range(10) for task in _waiting(waker, f"uid-s{number}", number=200)]
    await _turns()
    other_tasks = _waiting(waker, "uid-s10", number=30)
    await _turns()
    assert not any(request.done() for request in other_tasks)
    assert waker.waiting < 1000
    await waker.aclose()
    await asyncio.wait([*flood_tasks, *other_tasks])
    for request in (*flood_tasks, *other_tasks):
        assert isinstance(request.exception(), Declined)


@pytest.mark.parametrize(
    ("routes", "code"), [([], 404), ([Route(key="uid-a", cluster_path="a", upstream=None, why_absent="gone")], 503)]
)
async def test_waker_declines_waiters_of_removed_control_plane(
    operator: Operator, routes: list[Route], code: int
) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    waker.know(routes)
    with pytest.raises(Declined) as caught:
        await request
    assert caught.value.code == code
    await waker.aclose()


async def test_waker_requests_wake_again_when_control_plane_sleeps(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a")])
    waker.reach(["uid-a"])
    await waker.passage("uid-a")
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    # The control plane wakes, and falls asleep again before the request continues.
    waker.know([route("a")])
    waker.know([route("a", asleep=NOW)])
    await _turns()
    assert len(operator.asked) == 2
    waker.know([route("a")])
    await request


async def test_waker_close_declines_waiters_with_retry(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    await waker.aclose()
    with pytest.raises(Declined, match="retry") as caught:
        await request
    assert caught.value.code == 503
