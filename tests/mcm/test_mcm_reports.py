"""Reports of instances in the status of registrations, on a real API server and with the rights of production."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kplane.api import RegistrationMode
from kplane.mcm.errors import NotAnnounced, RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.pace import WritePace
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Cluster, Conflict
from kplane.provider.errors import Forbidden
from kplane.provider.providers.kplane.registration import REGISTRATIONS

from .reports_desk import Desk

pytestmark = pytest.mark.integration

Eventually = Callable[..., Any]
_BURST, _PERIOD_SECONDS = 3, 0.5
"""Pace of writes for an instance whose reason alternates. The values are 8 and 5 s in production."""


async def test_start_is_announced_and_end_removes_the_announcement(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        assert await desk.running() == ("False", "Starting")
        instance = {"controlPlaneUID": desk.uid, "services": ["Controllers"], "version": "v1.36.3"}
        assert (await desk.status())["instance"] == instance
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found == ("True", "InstanceRunning"))
        await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "Ended")
        status = await desk.status()
        assert "instance" not in status
        assert (status["ready"], status["controlPlaneUID"]) == (True, desk.uid)


@pytest.mark.parametrize(
    "status", [{"ready": False}, {"controlPlaneUID": "uid-of-the-next-one"}, {"services": ["Scheduler"]}]
)
async def test_announcement_for_a_withdrawn_registration_is_refused(desk: Desk, status: dict[str, Any]) -> None:
    """The answer to the announcement shows the withdrawal, even if the watch is behind."""
    cluster = desk.cluster
    stale = desk.seen(desk.name)
    reports = StatusReporter(desk.client, registration=lambda _: stale)
    await desk.resolve(**status)
    with pytest.raises(RegistrationWithdrawn):
        await reports.announce(cluster)
    await reports.end(desk.name)
    assert "instance" not in await desk.status()


async def test_announcement_for_a_deleted_registration_is_refused(desk: Desk, eventually: Eventually) -> None:
    await desk.admin.delete(REGISTRATIONS, desk.name)
    await eventually(lambda: desk.seen(desk.name) is None)
    with pytest.raises(RegistrationWithdrawn):
        await desk.reports.announce(desk.cluster)
    await desk.reports.end(desk.name)


async def test_only_transitions_are_written(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        for _ in range(50):
            desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
            desk.reports.look(desk.name)
            await asyncio.sleep(0)
        await eventually(desk.running, lambda found: found[1] == "InstanceRunning")
        assert desk.client.writes == 2
        # The first message of a reason is a transition. Later messages of the same reason are not.
        for number in range(50):
            desk.reports.update(desk.name, Reason.BACKOFF, message=f"it ended at {number}")
            await asyncio.sleep(0)
        await eventually(desk.running, lambda found: found == ("False", "Backoff"))
        for number in range(50):
            desk.reports.update(desk.name, Reason.BACKOFF, message=f"it ended again at {number}")
            await asyncio.sleep(0)
        await desk.reports.end(desk.name)
        await desk.reports.end(desk.name)
        assert desk.client.writes == 4


async def test_reporter_writes_burst_at_once_and_later_changes_at_a_pace(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = functools.partial(WritePace, burst=_BURST, period_seconds=_PERIOD_SECONDS)
    monkeypatch.setattr("kplane.mcm.status.reporter.WritePace", pace)
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        for number in itertools.count():
            desk.reports.update(desk.name, Reason.UNREADY if number % 2 else Reason.INSTANCE_RUNNING)
            await asyncio.sleep(0.01)
            if desk.client.writes == _BURST + 3:
                break
        gaps = [after - before for before, after in itertools.pairwise(desk.client.written_at)]
        assert max(gaps[: _BURST - 1]) < _PERIOD_SECONDS, gaps
        # After the burst, each write waits for its period.
        assert desk.client.written_at[-1] - desk.client.written_at[0] >= 3 * _PERIOD_SECONDS, gaps
        # The end is reported at once.
        await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "Ended")


async def test_held_reporter_keeps_condition_of_the_mcm_with_the_instance(
    desk: Desk, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    held_reporter = desk.another()
    async with desk.reports.running(), held_reporter.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")
        await desk.caught_up()
        before, instance = desk.client.writes, (await desk.status())["instance"]
        held_reporter.look(desk.name)
        await held_reporter.announce(desk.cluster)
        held_reporter.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER, message="'other' holds the Lease")
        for _ in range(20):
            await desk.caught_up()
            desk.reports.look(desk.name)
            held_reporter.look(desk.name)
            await asyncio.sleep(0.05)
        assert await desk.running() == ("True", "InstanceRunning")
        assert (await desk.status())["instance"] == instance
        assert desk.client.writes == before
        assert caplog.text.count("another mcm runs the instance") == 1
        # The end of an instance that never ran does not change the report of the running instance.
        await held_reporter.end(desk.name)
        assert await desk.running() == ("True", "InstanceRunning")
        # The held reporter gets its turn with the end of the other instance.
        await held_reporter.announce(desk.cluster)
        held_reporter.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER)
        await desk.reports.end(desk.name)
        await desk.caught_up()
        await held_reporter.confirm(desk.cluster)
        assert await desk.running() == ("False", "Starting")
        assert (await desk.status())["instance"] == instance
        held_reporter.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")


async def test_reporter_writes_running_soon_after_many_quick_changes(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        for _ in range(5):
            await desk.reports.announce(desk.cluster)
            desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
            await eventually(desk.running, lambda found: found[0] == "True", timeout=5)
            await desk.reports.end(desk.name)


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
async def test_faulty_management_api_blocks_no_start_or_end(
    desk: Desk, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    if silent:
        monkeypatch.setattr("kplane.mcm.status.reporter._DEADLINE_SECONDS", 0.3)
    desk.client.silent = silent
    desk.client.fault = Forbidden(403, "Forbidden", "somebody's policy says no")
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await desk.reports.end(desk.name)
        await desk.reports.announce(desk.cluster)
        assert await desk.running() == ("", "")
        # When the API is back, the current state is reported.
        monkeypatch.undo()
        desk.client.silent, desk.client.fault = False, None
        await eventually(desk.running, lambda found: found == ("False", "Starting"))


async def test_repeated_failure_to_start_is_written_once(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        for _ in range(5):
            await desk.reports.announce(desk.cluster)
            desk.reports.report_failure(desk.cluster, "no program")
            await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "CannotStart")
        assert (await desk.status())["instance"]["controlPlaneUID"] == desk.uid
        assert desk.client.writes == 2
        # The registration wants no instance any more, so the announcement is removed.
        await desk.resolve(ready=False)
        desk.reports.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
        assert "instance" not in await desk.status()


async def test_end_of_an_instance_of_an_earlier_mcm_is_reported(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")
    await desk.resolve(ready=False)
    next_run = desk.another()
    async with next_run.running():
        next_run.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
    assert "instance" not in await desk.status()


async def test_announcement_of_another_mcm_is_kept_until_we_own_it(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
    await desk.resolve(ready=False)
    desk.mine = False
    our_reporter = desk.another()
    async with our_reporter.running():
        our_reporter.look(desk.name)
        await our_reporter.end(desk.name)
        assert (await desk.running(), desk.client.writes) == (("False", "Starting"), 1)
        desk.mine = True
        our_reporter.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))


async def test_held_reporter_keeps_the_announcement_of_another_mcm(desk: Desk, eventually: Eventually) -> None:
    await desk.reports.announce(desk.cluster)
    instance = (await desk.status())["instance"]
    await desk.caught_up()
    held_reporter = desk.another()
    async with held_reporter.running():
        held_reporter.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER, message="another mcm works")
        await eventually(desk.running, lambda found: found == ("False", "ForeignControllerManager"))
        assert (await desk.status())["instance"] == instance


@pytest.mark.parametrize("failed", [False, True], ids=["ran", "could-not-start"])
async def test_end_of_our_instance_is_reported_after_we_lost_the_cluster(
    desk: Desk, eventually: Eventually, *, failed: bool
) -> None:
    """The API refuses the report at first, and the registration still wants an instance."""
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        if failed:
            desk.reports.report_failure(desk.cluster, "no program")
        desk.mine = False
        desk.client.fault = Forbidden(403, "Forbidden", "somebody's policy says no")
        await desk.reports.end(desk.name)
        assert "instance" in await desk.status()
        desk.client.fault = None
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
    assert "instance" not in await desk.status()


async def test_end_keeps_a_newer_announcement_of_another_mcm(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.mine = False
        foreign_status = {"status": {"instance": {"controlPlaneUID": "uid-of-theirs"}}}
        await desk.admin.patch(REGISTRATIONS, desk.name, foreign_status, subresource="status")
        await eventually(
            lambda: desk.seen(desk.name),
            lambda found: found["status"]["instance"].items() >= foreign_status["status"]["instance"].items(),
        )
        await desk.reports.end(desk.name)
    assert (await desk.status())["instance"]["controlPlaneUID"] == "uid-of-theirs"


async def test_end_keeps_the_condition_of_the_other_mode(desk: Desk, eventually: Eventually) -> None:
    dedicated = desk.another(mode=RegistrationMode.DEDICATED)
    await desk.resolve(mode="Dedicated")
    dedicated.report_failure(desk.cluster, "profile 'Tiny' is not known")
    await dedicated.end(desk.name)
    await eventually(lambda: (desk.seen(desk.name) or {})["status"].get("conditions"))
    for _ in range(2):
        await desk.reports.end(desk.name)  # this mcm has no instance of the registration
    assert await desk.running() == ("False", "CannotStart")
    assert desk.client.writes == 1


async def test_end_after_an_earlier_run_is_reported_despite_mode_change(
    desk: Desk,
) -> None:
    await desk.reports.announce(desk.cluster)
    await desk.resolve(mode="Dedicated")
    await desk.another().end(desk.name)
    assert await desk.running() == ("False", "Ended")


async def test_reporter_without_its_shard_lease_writes_no_status(desk: Desk, eventually: Eventually) -> None:
    """The next owner of the shard reports the instance in the same words. A late write must not undo its report."""
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        await desk.reports.end(desk.name)
        desk.fenced = True
        with pytest.raises(NotAnnounced):
            await desk.reports.announce(desk.cluster)
        await desk.reports.end(desk.name)
        desk.reports.look(desk.name)
        assert await desk.running() == ("False", "Ended")
        assert desk.client.writes == 2
        # Another mcm announces an instance and ends without a report.
        desk.fenced = False
        await desk.another().announce(desk.cluster)
        assert await desk.running() == ("False", "Starting")
        await desk.caught_up()
        desk.reports.take_over([desk.name])
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
    assert "instance" not in await desk.status()


@pytest.mark.parametrize(
    ("fault", "unseen"), [(None, False), (Conflict(409, "Conflict", "it was changed"), False), (None, True)]
)
async def test_end_does_not_wait_for_a_silent_api_beyond_the_lease(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fault: Exception | None, unseen: bool
) -> None:
    """`end` has to return before the Lease expires, or mcm would end itself."""
    monkeypatch.setattr(
        "kplane.mcm.status.reporter._DEADLINE_SECONDS", 3600.0
    )  # deadline of other requests, with which the test would not end
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.client.fault, desk.unseen = fault, unseen
        desk.client.silent, desk.seconds_left = True, 0.4
        await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "Starting")


async def test_starting_message_names_the_program(desk: Desk) -> None:
    attributes = {**desk.cluster.attributes, "services": "Scheduler"}
    await desk.reports.announce(Cluster(desk.name, config=desk.cluster.config, attributes=attributes))
    [condition] = (await desk.status())["conditions"]
    assert condition["message"] == "kube-scheduler is starting"


async def test_registration_without_an_instance_is_not_written(desk: Desk) -> None:
    async with desk.reports.running():
        desk.reports.look(desk.name)
        await desk.reports.end(desk.name)
    assert desk.client.writes == 0
    assert await desk.running() == ("", "")


async def test_long_message_keeps_its_end(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.STOP_FAILED, message="x" * 5000 + " and the reason")
        await eventually(desk.running, lambda found: found == ("False", "StopFailed"))
    [condition] = [item for item in (await desk.status())["conditions"] if item["type"] == "Running"]
    assert condition["message"].endswith("x and the reason")
    assert len(condition["message"]) == 1000
