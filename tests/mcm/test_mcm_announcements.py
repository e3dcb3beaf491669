"""An mcm does not overwrite the report of a running instance before it holds the Lease of the tenant."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.api import RegistrationMode
from kplane.mcm.errors import NotAnnounced, RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Cluster, ClusterConfig, Conflict

NAME = "a"
CLUSTER = Cluster(
    NAME, config=ClusterConfig(server="https://127.0.0.1:1", token="t"), attributes={"controlPlaneUID": "uid"}
)
INSTANCE = {"controlPlaneUID": "uid", "services": ["Controllers"], "version": "v1.36.3"}


class Registration:
    """A registration and the client that writes its status, with resource versions as of an API server."""

    def __init__(self) -> None:
        running = {"type": "Running", "status": "True", "reason": "InstanceRunning", "message": "it runs"}
        self.stored: dict[str, Any] = {
            "metadata": {"name": NAME, "uid": "u", "resourceVersion": "1"},
            "status": {
                "ready": True,
                "controlPlaneUID": "uid",
                "instance": dict(INSTANCE),
                "conditions": [running],
            },
        }
        self.written: list[str] = []
        """Reasons of all writes, in order."""

    def seen(self, name: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.stored) if name == NAME else None

    def change(self, **status: Any) -> None:
        self.stored["status"] |= status
        self.stored["metadata"]["resourceVersion"] = str(int(self.stored["metadata"]["resourceVersion"]) + 1)

    async def apply(self, _resource: Any, body: dict[str, Any], **_options: Any) -> dict[str, Any]:
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "it was changed")
        self.written.append(body["status"]["conditions"][0]["reason"])
        self.stored["status"].pop("instance", None)
        self.change(**copy.deepcopy(body["status"]))
        return copy.deepcopy(self.stored)

    async def list(self, _resource: Any, **_options: Any) -> Any:
        class Found:
            items = (copy.deepcopy(self.stored),)

        return Found()


@pytest.fixture
def registration() -> Registration:
    return Registration()


@contextlib.asynccontextmanager
async def reporting(registration: Registration, **options: Any) -> AsyncIterator[StatusReporter]:
    reports = StatusReporter(registration, registration=registration.seen, version="v1.36.3", **options)  # type: ignore[arg-type]
    async with reports.running():
        yield reports


async def settled(reports: StatusReporter) -> None:
    """Let the reporter process all updates."""
    reports.look(NAME)
    for _ in range(50):
        await asyncio.sleep(0)


async def test_reporter_writes_nothing_while_another_mcm_holds_the_lease(
    registration: Registration, caplog: pytest.LogCaptureFixture
) -> None:
    before = copy.deepcopy(registration.stored)
    async with reporting(registration) as reports:
        await settled(reports)
        await reports.announce(CLUSTER)
        await settled(reports)
        for _ in range(3):
            reports.update(NAME, Reason.FOREIGN_CONTROLLER_MANAGER, message="'other' holds the Lease")
            await settled(reports)
        await reports.end(NAME)
        await settled(reports)
    assert (registration.written, registration.stored) == ([], before)
    assert caplog.text.count("another mcm runs the instance") == 1


async def test_reporter_announces_with_the_lease_and_before_the_start(registration: Registration) -> None:
    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        reports.update(NAME, Reason.FOREIGN_CONTROLLER_MANAGER, message="'other' holds the Lease")
        await settled(reports)
        # The other mcm has ended its instance and released the Lease. The reporter sees its last write.
        registration.change(
            instance=None, conditions=[{"type": "Running", "status": "False", "reason": "Ended", "message": ""}]
        )
        await reports.confirm(CLUSTER)
        assert registration.written[-1] == "Starting"
        assert registration.stored["status"]["instance"] == INSTANCE
        reports.update(NAME, Reason.INSTANCE_RUNNING)
        await settled(reports)
    assert registration.written == ["Starting", "InstanceRunning"]


async def test_confirmation_announces_over_the_report_of_an_earlier_run(registration: Registration) -> None:
    async with reporting(registration) as reports:
        await settled(reports)
        await reports.announce(CLUSTER)
        await reports.confirm(CLUSTER)
        assert registration.written == ["Starting"]
        await reports.confirm(CLUSTER)
    assert registration.written == ["Starting"]


async def test_confirmation_is_refused_when_the_registration_was_withdrawn(registration: Registration) -> None:
    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        registration.change(ready=False, instance=None)
        with pytest.raises(RegistrationWithdrawn):
            await reports.confirm(CLUSTER)
        await reports.end(NAME)
        assert registration.stored["status"].get("instance") is None


async def test_confirmation_succeeds_after_a_failed_confirmation(registration: Registration) -> None:
    async with reporting(registration, has_to_announce=True) as reports:
        await reports.announce(CLUSTER)
        apply, registration.apply = registration.apply, _refuse  # type: ignore[method-assign]
        with pytest.raises(NotAnnounced):
            await reports.confirm(CLUSTER)
        reports.update(NAME, Reason.CANNOT_START)
        registration.apply = apply  # type: ignore[method-assign]
        await reports.confirm(CLUSTER)
        assert registration.written[-1] == "Starting"


async def _refuse(*_: Any, **__: Any) -> dict[str, Any]:
    raise Conflict(409, "Conflict", "it was changed")


async def test_unreachable_api_server_is_reported_over_an_earlier_run(registration: Registration) -> None:
    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        reports.update(NAME, Reason.API_SERVER_UNREACHABLE, message="no answer")
        await settled(reports)
    assert registration.written == ["APIServerUnreachable"]
    assert registration.stored["status"]["instance"] == INSTANCE


@pytest.mark.parametrize("reason", [Reason.API_SERVER_UNREACHABLE, Reason.CANNOT_START])
async def test_reporter_without_the_lease_overwrites_another_mcm_once(
    registration: Registration, caplog: pytest.LogCaptureFixture, reason: Reason
) -> None:
    def other_says(status: str, said: str) -> None:
        registration.change(conditions=[{"type": "Running", "status": status, "reason": said, "message": ""}])

    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        for _ in range(3):
            reports.update(NAME, reason, message="no answer")
            await settled(reports)
            # The other mcm sees that its condition was overwritten, and writes it again.
            other_says("True", "InstanceRunning")
            await settled(reports)
        assert registration.written == [reason]
        assert caplog.text.count("another mcm runs the instance") == 1
        # The other mcm reports its end, so this reporter may write again.
        other_says("False", "Ended")
        await settled(reports)
        assert registration.written == [reason] * 2
        other_says("True", "InstanceRunning")
        await settled(reports)
        # The end of an instance that never ran does not change the report.
        await reports.end(NAME)
        await settled(reports)
    assert registration.written == [reason] * 2
    assert registration.stored["status"]["conditions"][0]["status"] == "True"


@pytest.mark.parametrize("held_before", [False, True], ids=["overwritten", "held-before"])
async def test_reporter_without_the_lease_overwrites_a_silent_mcm_again(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any], *, held_before: bool
) -> None:
    """The other mcm may have died with its node."""
    monkeypatch.setattr("kplane.mcm.status.reporter._YIELD_SECONDS", 0.3)
    running = {"type": "Running", "status": "True", "reason": "InstanceRunning", "message": ""}
    reason = Reason.API_SERVER_UNREACHABLE
    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        if held_before:
            reports.update(NAME, Reason.FOREIGN_CONTROLLER_MANAGER, message="'other' holds the Lease")
            await settled(reports)
        reports.update(NAME, reason, message="no answer")
        await settled(reports)
        if not held_before:
            registration.change(conditions=[running])
            await settled(reports)
        before = len(registration.written)
        assert registration.stored["status"]["conditions"][0]["status"] == "True"
        await eventually(lambda: registration.written[before:] == [reason])
        # The other mcm writes again, so the reporter waits for the same time again.
        registration.change(conditions=[running])
        await settled(reports)
        assert registration.written[before:] == [reason]
        await eventually(lambda: registration.written[before:] == [reason] * 2)


async def test_reporter_that_reaches_the_lease_again_reports_its_instance(registration: Registration) -> None:
    async with reporting(registration) as reports:
        await reports.announce(CLUSTER)
        reports.update(NAME, Reason.API_SERVER_UNREACHABLE, message="no answer")
        await settled(reports)
        running = {"type": "Running", "status": "True", "reason": "InstanceRunning", "message": ""}
        registration.change(conditions=[running])
        await settled(reports)
        await reports.confirm(CLUSTER)
        reports.update(NAME, Reason.INSTANCE_RUNNING)
        await settled(reports)
    assert registration.written == ["APIServerUnreachable", "Starting", "InstanceRunning"]


async def test_reporter_reports_end_of_an_unwanted_instance_at_once(registration: Registration) -> None:
    registration.change(ready=False)
    async with reporting(registration) as reports:
        await settled(reports)
    assert registration.written == ["Ended"]


async def test_reporter_reports_end_of_a_wanted_instance_after_a_wait(
    registration: Registration, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    monkeypatch.setattr("kplane.mcm.status.reporter._YIELD_SECONDS", 0.05)
    async with reporting(registration) as reports:
        await settled(reports)
        assert registration.written == []
        await eventually(lambda: registration.written)
    assert registration.written == ["Ended"]


async def test_reporter_of_the_dedicated_mode_announces_at_once(registration: Registration) -> None:
    registration.change(mode="Dedicated", instance={**INSTANCE, "mode": "Dedicated"})
    async with reporting(registration, mode=RegistrationMode.DEDICATED) as reports:
        await reports.announce(CLUSTER)
    assert registration.written == ["Starting"]
