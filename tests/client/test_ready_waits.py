"""A wait for a ready control plane ends soon if the control plane needs the action of a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

import kplane.client.control_planes
from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.client import Change, ControlPlanes, NotSettled, awake, ready
from kplane.provider import Client

_ANSWER_SECONDS = 0.2
_CLASSLESS = Reason.CLASS_NOT_FOUND
_NO_PERSON = (
    Reason.PROVISIONING,
    Reason.ETCD_UNAVAILABLE,
    Reason.CLUSTER_PATH_IN_USE,
    Reason.ENDPOINT_PENDING,
    Reason.BOOTSTRAP_FAILED,
)


def state(reason: str, *, generation: int = 1, status: str = "False") -> ControlPlane:
    condition = {"type": "Ready", "status": status, "reason": reason, "message": f"message of {reason}"}
    return ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "generation": 2},
            "spec": {},
            "status": {
                "phase": "Ready" if status == "True" else "Pending",
                "observedGeneration": 1 + generation,
                "conditions": [{**condition, "lastTransitionTime": "2026-11-26T12:00:00Z"}],
            },
        }
    )


READY = state(Reason.RECONCILED, status="True")


class Watch:
    """Replaces the watch by the given states; a number is a pause in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: ControlPlane | float) -> None:
        self._steps = steps
        monkeypatch.setattr(kplane.client.control_planes, "follow", self._follow)
        monkeypatch.setattr(kplane.client.control_planes, "_ANSWER_SECONDS", _ANSWER_SECONDS)

    async def _follow(self, _: Any, __: Any, *, name: str) -> AsyncGenerator[Any, None]:
        for step in self._steps:
            if isinstance(step, ControlPlane):
                yield Change("MODIFIED", step)
            else:
                await asyncio.sleep(step)
        await asyncio.Event().wait()

    async def wait(self, until: Any = ready, *, seconds: float = 60.0) -> ControlPlane:
        async with asyncio.timeout(10):
            return await ControlPlanes(cast("Client", None)).wait("acme", until, timeout_seconds=seconds)


@pytest.mark.parametrize("until", [ready, awake])
@pytest.mark.parametrize("reason", [_CLASSLESS, Reason.KEYS_CHANGED, Reason.KEYS_UNUSABLE, Reason.DATA_LOST])
async def test_wait_ends_early_if_reason_needs_a_person(
    monkeypatch: pytest.MonkeyPatch, reason: Reason, until: Any
) -> None:
    with pytest.raises(NotSettled, match=rf"acme is Pending \({reason}: message of {reason}\), after 0.2 s"):
        await Watch(monkeypatch, state(reason), state(reason)).wait(until)


@pytest.mark.parametrize("reason", [*_NO_PERSON, "ReasonOfALaterVersion"])
async def test_wait_uses_its_whole_time_if_no_person_is_needed(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    with pytest.raises(NotSettled, match=r"after 0\.5 s"):
        await Watch(monkeypatch, state(reason)).wait(seconds=0.5)


async def test_wait_goes_on_if_the_reason_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    states = (state(_CLASSLESS), _ANSWER_SECONDS / 2, state(Reason.PROVISIONING), 2 * _ANSWER_SECONDS, READY)
    assert await Watch(monkeypatch, *states).wait() == READY


async def test_wait_ignores_reason_of_an_earlier_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Watch(monkeypatch, state(_CLASSLESS, generation=0), 2 * _ANSWER_SECONDS, READY).wait() == READY


async def test_wait_for_sleep_state_does_not_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, state(Reason.ROLE_NOT_FOUND), 2 * _ANSWER_SECONDS, READY)
    assert await watch.wait(lambda control_plane: control_plane is READY) == READY
