"""Events of a registration about its instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from kplane.mcm.errors import RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.events import Events
from kplane.mcm.status.observer import NullReporter
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.providers.kplane import REGISTRATIONS

ATTRIBUTES = {"controlPlaneUID": "u"}
CLUSTER = Cluster("a", config=ClusterConfig(server="https://a", token="t"), attributes=ATTRIBUTES)
REGISTRATION = {
    "metadata": {"name": "a", "uid": "1"},
    "status": {"ready": True, "controlPlaneUID": "u"},
}


class World:
    def __init__(self) -> None:
        self.registration: dict[str, Any] | None = REGISTRATION
        self.recorder = Mock(EventRecorder)
        self.events = Events(
            NullReporter(registration=lambda _: self.registration),
            recorder=self.recorder,
            resource=REGISTRATIONS,
            seen=lambda _: self.registration,
        )

    @property
    def told(self) -> list[tuple[str, str]]:
        for call in self.recorder.event.call_args_list:
            assert call.args[0]["metadata"]["uid"] == "1"
            assert call.args[0]["kind"] == "ControlPlaneRegistration"
        return [call.args[1:3] for call in self.recorder.event.call_args_list]

    def crash(self, times: int = 1) -> None:
        for number in range(times):
            self.events.update("a", Reason.BACKOFF, message=f"ended with exit code {number}")
            self.events.update("a", Reason.STARTING)
            self.events.update("a", Reason.INSTANCE_RUNNING)


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("kplane.mcm.status.events._now", lambda: now[0])
    return wait


async def test_start_and_end_are_recorded(world: World) -> None:
    await world.events.announce(CLUSTER)
    world.events.update("a", Reason.STARTING)
    world.events.update("a", Reason.INSTANCE_RUNNING)
    world.events.update("a", Reason.INSTANCE_RUNNING)
    world.registration = None
    await world.events.end("a")
    assert world.told == [("Normal", "InstanceStarted"), ("Normal", "InstanceEnded")]


@pytest.mark.parametrize(
    ("services", "programs"),
    [
        ("Controllers", "kube-controller-manager"),
        ("Scheduler", "kube-scheduler"),
        ("Controllers,Scheduler", "kube-controller-manager and kube-scheduler"),
    ],
)
async def test_start_and_end_name_the_programs(world: World, services: str, programs: str) -> None:
    await world.events.announce(Cluster("a", config=CLUSTER.config, attributes={"services": services, **ATTRIBUTES}))
    world.events.update("a", Reason.INSTANCE_RUNNING)
    await world.events.end("a")
    messages = [call.args[3] for call in world.recorder.event.call_args_list]
    assert messages == [f"{programs} started for https://a", f"{programs} ended for https://a"]


async def test_crash_loop_is_recorded_once_a_minute(world: World, later: Callable[[float], None]) -> None:
    await world.events.announce(CLUSTER)
    world.events.update("a", Reason.INSTANCE_RUNNING)
    world.crash(50)
    events = [("Normal", "InstanceStarted"), ("Warning", "InstanceEnded"), ("Normal", "InstanceStarted")]
    assert world.told == events
    assert "exit code 0" in world.recorder.event.call_args_list[1].args[3]
    later(61.0)
    world.crash(50)
    assert world.told == [*events, *events[1:]]


async def test_each_kind_of_warning_is_recorded_once(world: World) -> None:
    await world.events.announce(CLUSTER)
    world.crash(3)
    for _ in range(3):
        world.events.update("a", Reason.UNREADY, message="no answer")
    world.events.update("a", Reason.STOP_FAILED, message="no disk")
    assert [reason for kind, reason in world.told if kind == "Warning"] == [
        "InstanceEnded",
        "InstanceUnready",
        "InstanceStopFailed",
    ]


async def test_failed_start_is_recorded_without_an_end(world: World) -> None:
    await world.events.announce(CLUSTER)
    world.events.report_failure(CLUSTER, "no such profile")
    await world.events.end("a")
    assert world.told == [("Warning", "InstanceCannotStart")]


async def test_long_message_keeps_its_begin_and_its_end(world: World) -> None:
    await world.events.announce(CLUSTER)
    world.events.update("a", Reason.BACKOFF, message=f"ended with exit code 1{'x' * 5000}the last words")
    message = world.recorder.event.call_args.args[3]
    assert len(message) == 1000
    assert message.startswith("ended with exit code 1")
    assert message.endswith("the last words")


async def test_withdrawn_registration_is_refused_without_status_reports(world: World) -> None:
    world.registration = {**REGISTRATION, "status": {"ready": False}}
    with pytest.raises(RegistrationWithdrawn):
        await world.events.announce(CLUSTER)
    await world.events.end("a")
    assert world.told == []
