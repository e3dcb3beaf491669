"""A wait for sleep ends as soon as the cause that keeps the control plane awake is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import kplane.client.control_planes
from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.client import Change, ClientError, ControlPlanes, NotSettled
from kplane.client.sleeping import obstacle
from kplane.provider import Client

LONG_AGO = "2026-11-26T12:00:00Z"
SLEEP = "controlplane.kplane.dev/sleep-requested"
WAKE = "controlplane.kplane.dev/wake-requested"
ROTATION = {"phase": "Overlapping", "value": "1", "startedAt": LONG_AGO, "phaseStartedAt": LONG_AGO}
MIGRATION = {"from": {"mode": "Virtual"}, "to": {"mode": "Dedicated"}, "step": "Copying"}
KEPT = "kept awake, because Job a/job1 runs"


def condition(kind: str, status: str, reason: str, message: str = "m") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": LONG_AGO}


def state(phase: str, *conditions: Any, metadata: Any = None, **status: Any) -> dict[str, Any]:
    all_conditions = [condition("Ready", "True", "Reconciled"), *conditions]
    return {
        "metadata": {"name": "acme", **(metadata or {})},
        "spec": {},
        "status": {"phase": phase, "conditions": all_conditions, **status},
    }


AWAKE = state("Ready", condition("Hibernated", "False", "Awake", "awake, because it is in use"))
KEPT_AWAKE = state("Ready", condition("Hibernated", "False", Reason.KEPT_AWAKE, KEPT))
FALLS = state("Ready", condition("Hibernated", "False", Reason.FALLING_ASLEEP, "its API server ends"))
ASLEEP = state("Hibernated", condition("Hibernated", "True", Reason.HIBERNATED))
WAKES = state("Waking", condition("Hibernated", "False", Reason.WAKING, "woken, because a client asked for it"))


class Cluster:
    """A cluster whose control plane passes through the given states after a request to sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], *states: dict[str, Any]) -> None:
        self.present = before
        self._states = list(states)
        monkeypatch.setattr(kplane.client.control_planes, "follow", self._follow)
        monkeypatch.setattr(kplane.client.control_planes, "_ANSWER_SECONDS", 0.2)
        monkeypatch.setattr(kplane.client.control_planes, "_SLEEP_HOLDS_SECONDS", 0.2)

    async def patch(self, _: Any, name: str, body: dict[str, Any]) -> dict[str, Any]:
        annotations = self.present["metadata"].get("annotations", {}) | body["metadata"]["annotations"]
        self.present["metadata"] = {**self.present["metadata"], "annotations": annotations}
        self._annotations = annotations
        return self.present

    async def _follow(self, _: Any, kind: type[ControlPlane], *, name: str) -> AsyncGenerator[Any, None]:
        yield Change("ADDED", kind.model_validate(self.present))
        while self._states:
            await asyncio.sleep(0)
            new = self._states.pop(0)
            annotations = self._annotations | new["metadata"].get("annotations", {})
            self.present = {**new, "metadata": {**new["metadata"], "annotations": annotations}}
            yield Change("MODIFIED", kind.model_validate(self.present))
        await asyncio.Event().wait()

    async def sleep(self, *, seconds: float = 60.0) -> ControlPlane:
        async with asyncio.timeout(10):
            client = cast("Client", self)
            return await ControlPlanes(client).sleep("acme", wait=True, timeout_seconds=seconds)


async def test_wait_for_sleep_returns_when_control_plane_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    control_plane = await Cluster(monkeypatch, AWAKE, FALLS, ASLEEP).sleep()
    assert control_plane.status.phase == "Hibernated"


async def test_wait_for_sleep_ends_at_once_when_kept_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match="acme does not sleep: kept awake, because Job a/job1 runs") as failure:
        await Cluster(monkeypatch, AWAKE, KEPT_AWAKE).sleep()
    assert not isinstance(failure.value, NotSettled)


async def test_wait_for_sleep_ignores_cause_of_earlier_request(monkeypatch: pytest.MonkeyPatch) -> None:
    # The Job has ended since the last check of the operator.
    control_plane = await Cluster(monkeypatch, KEPT_AWAKE, KEPT_AWAKE, FALLS, ASLEEP).sleep()
    assert control_plane.status.phase == "Hibernated"


async def test_wait_for_sleep_ends_if_earlier_cause_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match="Job a/job1 runs") as failure:
        await Cluster(monkeypatch, KEPT_AWAKE).sleep()
    assert not isinstance(failure.value, NotSettled)


async def test_wait_for_sleep_fails_if_client_wakes_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match=r"slept and was woken again: .*woken, because a client asked for it"):
        await Cluster(monkeypatch, AWAKE, FALLS, ASLEEP, WAKES).sleep()


async def test_wait_for_sleep_fails_if_wake_request_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    later = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    woken = {**FALLS, "metadata": {"name": "acme", "annotations": {WAKE: later}}}
    with pytest.raises(ClientError, match="a client asked for it after the request to sleep"):
        await Cluster(monkeypatch, AWAKE, woken).sleep()


async def test_timeout_of_sleep_names_pending_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSettled, match="FallingAsleep: its API server ends"):
        await Cluster(monkeypatch, AWAKE, FALLS).sleep(seconds=0.5)


@pytest.mark.parametrize(
    ("control_plane", "said"),
    [
        (state("Ready", condition("Hibernated", "False", Reason.NAMESPACE_STUCK, "namespace a")), "namespace a"),
        (state("Ready", condition("Supported", "False", "X", f"annotation {SLEEP} is not acted on: no")), "acted on"),
        (state("Ready", metadata={"annotations": {"controlplane.kplane.dev/paused": "true"}}), "kplane resume acme"),
        (state("Terminating", metadata={"deletionTimestamp": LONG_AGO}), "is being deleted"),
        (state("Ready", rotation=ROTATION), "its keys are rotated"),
        (state("Migrating", migration=MIGRATION), "its data move"),
    ],
)
def test_obstacle_names_what_keeps_control_plane_awake(control_plane: dict[str, Any], said: str) -> None:
    assert said in (obstacle(ControlPlane.model_validate(control_plane)) or "")


@pytest.mark.parametrize("control_plane", [AWAKE, FALLS, WAKES])
def test_obstacle_is_none_while_sleep_proceeds(control_plane: dict[str, Any]) -> None:
    assert obstacle(ControlPlane.model_validate(control_plane)) is None
