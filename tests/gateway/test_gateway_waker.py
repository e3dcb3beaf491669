"""Requests to control planes that sleep: who waits, how long, and how often a wake is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.gateway.errors import Declined
from kplane.gateway.routes import Hold, Route
from kplane.gateway.waker import Waker
from kplane.provider import Unreachable
from kplane.provider.aio.backoff import Backoff

from .fleet import route

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


class Operator:
    """Is asked to wake control planes, and does nothing."""

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


async def test_changes_wait_while_a_control_plane_is_held(operator: Operator) -> None:
    waker = _waker(operator, each_held=2)
    held = replace(route("a"), held=Hold(until=NOW + timedelta(minutes=1), asked="then"))
    waker.know([held])
    waker.reach(["uid-a"])
    await waker.passage("uid-a")
    changing = [asyncio.create_task(waker.passage("uid-a", change=True)) for _ in range(2)]
    await _turns()
    assert waker.waiting == 2
    with pytest.raises(Declined) as caught:
        await waker.passage("uid-a", change=True)
    assert caught.value.code == 429
    # It has moved, and is not reached there yet.
    waker.reach([])
    waker.know([route("a")])
    await _turns()
    assert waker.waiting == 2
    waker.reach(["uid-a"])
    await asyncio.gather(*changing)
    assert operator.asked == []
    # The time of a hold has come.
    waker.know([replace(held, held=Hold(until=NOW, asked="now"))])
    await waker.passage("uid-a", change=True)


async def test_many_requests_are_one_wake(operator: Operator) -> None:
    waker, changes = _waker(operator), []
    waker.changed = lambda: changes.append(waker.wants(sleeping))
    sleeping, other = route("a", asleep=EARLIER), route("b", asleep=EARLIER)
    waker.know([sleeping, other])
    assert not waker.wants(sleeping)
    requests = _waiting(waker, number=20)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    assert (waker.waiting, changes) == (20, [True])
    assert not waker.wants(other)
    # What the operator says meanwhile is no reason to ask again.
    waker.know([route("a", asleep=EARLIER, requested=NOW), other])
    await _turns()
    waker.reach(["uid-a"])
    await _turns()
    assert not any(request.done() for request in requests)
    waker.know([route("a"), other])
    await asyncio.gather(*requests)
    assert len(operator.asked) == 1
    assert waker.waiting == 0


async def test_a_request_goes_on_when_envoy_reaches_what_is_awake(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a")])
    (request,) = _waiting(waker)
    await _turns()
    assert not request.done()
    waker.reach(["uid-a"])
    await request
    await waker.passage("uid-a")
    assert operator.asked == []


async def test_one_that_was_asked_already_is_not_asked_again(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER, requested=NOW - timedelta(seconds=1))])
    (request,) = _waiting(waker)
    await _turns()
    assert operator.asked == []
    # It fell asleep again, before anybody saw it awake.
    waker.know([route("a", asleep=NOW)])
    await _turns()
    assert operator.asked == [("uid-a", NOW + timedelta(microseconds=1))]
    request.cancel()
    await waker.aclose()


@pytest.mark.parametrize("requested", [EARLIER, NOW + timedelta(days=400)])
async def test_a_request_that_the_operator_does_not_act_on_is_none(operator: Operator, requested: datetime) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER, requested=requested)])
    _waiting(waker)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    await waker.aclose()


async def test_a_failed_request_is_repeated(operator: Operator, eventually: Callable[..., Any]) -> None:
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


async def test_clients_that_come_and_go_ask_no_more_often(operator: Operator) -> None:
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


async def test_it_does_not_wait_for_ever(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    waker.know([route("a", asleep=EARLIER)])
    assert await _code(waker) == 503
    assert waker.waiting == 0
    await waker.aclose()


def _failed(*, requested: datetime | None = None, failed: bool = True, problem: str = "Secret x is damaged") -> Route:
    sleeping = route("a", asleep=EARLIER, requested=requested)
    assert sleeping.asleep is not None
    return replace(sleeping, asleep=replace(sleeping.asleep, failed=failed, problem=problem))


async def _declined(waker: Waker) -> Declined:
    with pytest.raises(Declined) as caught:
        await waker.passage("uid-a")
    return caught.value


async def test_waker_answers_with_the_cause_when_a_person_has_to_act(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(milliseconds=10))
    waker.know([_failed()])
    declined = await _declined(waker)
    assert (declined.code, declined.is_retried) == (503, False)
    assert str(declined) == "this control plane cannot wake: Secret x is damaged"
    # The operator tries it once more all the same: a person may have acted.
    assert operator.asked == [("uid-a", NOW)]
    assert waker.waiting == 0
    await waker.aclose()


async def test_waker_answers_at_once_when_the_operator_had_time_for_an_earlier_request(operator: Operator) -> None:
    waker = _waker(operator, failed_patience=timedelta(seconds=30))
    waker.know([_failed(requested=NOW - timedelta(seconds=30))])
    async with asyncio.timeout(5):
        assert (await _declined(waker)).code == 503
    assert operator.asked == []
    await waker.aclose()


async def test_waker_has_requests_wait_when_a_failed_control_plane_begins_to_wake(operator: Operator) -> None:
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


async def test_waker_answers_when_the_wake_that_was_asked_for_fails(operator: Operator) -> None:
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


async def test_waker_names_the_cause_when_a_wake_takes_too_long(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    waker.know([_failed(failed=False, problem="waiting for kube-apiserver")])
    declined = await _declined(waker)
    assert (declined.code, declined.is_retried) == (503, True)
    assert str(declined).endswith("within 0 s: waiting for kube-apiserver")
    await waker.aclose()


async def test_one_that_waits_for_room_has_its_clients_come_again(operator: Operator) -> None:
    waker = _waker(operator, patience_seconds=0.01)
    sleeping = route("a", asleep=EARLIER)
    assert sleeping.asleep is not None
    waker.know([replace(sleeping, asleep=replace(sleeping.asleep, crowded=True))])
    assert await _code(waker) == 429
    await waker.aclose()


async def test_more_than_so_many_do_not_wait(operator: Operator) -> None:
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
    await asyncio.wait(requests)


async def test_a_flood_at_some_leaves_room_for_others(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route(f"s{number}", asleep=EARLIER) for number in range(11)])
    flood = [each for number in range(10) for each in _waiting(waker, f"uid-s{number}", number=200)]
    await _turns()
    honest = _waiting(waker, "uid-s10", number=30)
    await _turns()
    assert not any(request.done() for request in honest)
    assert waker.waiting < 1000
    await waker.aclose()
    await asyncio.wait([*flood, *honest])
    for request in (*flood, *honest):
        assert isinstance(request.exception(), Declined)


@pytest.mark.parametrize(
    ("routes", "code"), [([], 404), ([Route(key="uid-a", cluster_path="a", upstream=None, why_absent="gone")], 503)]
)
async def test_nobody_waits_for_what_is_gone(operator: Operator, routes: list[Route], code: int) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    waker.know(routes)
    with pytest.raises(Declined) as caught:
        await request
    assert caught.value.code == code
    await waker.aclose()


async def test_one_that_falls_asleep_again_is_woken_again(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a")])
    waker.reach(["uid-a"])
    await waker.passage("uid-a")
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    assert operator.asked == [("uid-a", NOW)]
    # Awake, and asleep again before the request could go on.
    waker.know([route("a")])
    waker.know([route("a", asleep=NOW)])
    await _turns()
    assert len(operator.asked) == 2
    waker.know([route("a")])
    await request


async def test_at_the_end_all_are_told_to_retry(operator: Operator) -> None:
    waker = _waker(operator)
    waker.know([route("a", asleep=EARLIER)])
    (request,) = _waiting(waker)
    await _turns()
    await waker.aclose()
    with pytest.raises(Declined, match="retry") as caught:
        await request
    assert caught.value.code == 503
