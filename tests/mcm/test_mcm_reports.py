"""What registrations are told of their instances, on a real API server, with the rights that mcm has in production."""

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
"""Of the writes about an instance that goes to and fro; 8 and 5 s in production."""


async def test_an_instance_is_announced_before_it_starts_and_its_end_confirmed(
    desk: Desk, eventually: Eventually
) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        assert await desk.running() == ("False", "Starting")
        announced = {"controlPlaneUID": desk.uid, "services": ["Controllers"], "version": "v1.36.3"}
        assert (await desk.status())["instance"] == announced
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
async def test_what_the_operator_took_back_meanwhile_does_not_start(desk: Desk, status: dict[str, Any]) -> None:
    """The answer to the announcement tells it, also where the watch is behind."""
    cluster = desk.cluster
    stale = desk.seen(desk.name)
    reports = StatusReporter(desk.client, registration=lambda _: stale)
    await desk.resolve(**status)
    with pytest.raises(RegistrationWithdrawn):
        await reports.announce(cluster)
    await reports.end(desk.name)
    assert "instance" not in await desk.status()


async def test_a_registration_that_is_gone_starts_nothing(desk: Desk, eventually: Eventually) -> None:
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
        # Last words that differ each time are no transition, the first ones are.
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


async def test_reporter_writes_first_changes_at_once_and_later_ones_in_their_pace(
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
        # The rest of the allowance is spent when the burst is over.
        assert desk.client.written_at[-1] - desk.client.written_at[0] >= 3 * _PERIOD_SECONDS, gaps
        # Its end is told at once.
        await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "Ended")


async def test_held_reporter_leaves_condition_to_the_mcm_that_runs_the_instance(
    desk: Desk, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    held = desk.another()
    async with desk.reports.running(), held.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")
        await desk.caught_up()
        before, instance = desk.client.writes, (await desk.status())["instance"]
        held.look(desk.name)
        await held.announce(desk.cluster)
        held.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER, message="'other' holds the Lease")
        for _ in range(20):
            await desk.caught_up()
            desk.reports.look(desk.name)
            held.look(desk.name)
            await asyncio.sleep(0.05)
        assert await desk.running() == ("True", "InstanceRunning")
        assert (await desk.status())["instance"] == instance
        assert desk.client.writes == before
        assert caplog.text.count("another mcm runs the instance") == 1
        # The end of an instance that never ran takes nothing away from the one that does.
        await held.end(desk.name)
        assert await desk.running() == ("True", "InstanceRunning")
        # Its turn comes with the end of the other one.
        await held.announce(desk.cluster)
        held.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER)
        await desk.reports.end(desk.name)
        await desk.caught_up()
        await held.confirm(desk.cluster)
        assert await desk.running() == ("False", "Starting")
        assert (await desk.status())["instance"] == instance
        held.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")


async def test_reporter_writes_running_soon_after_many_quick_changes(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        for _ in range(5):
            await desk.reports.announce(desk.cluster)
            desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
            await eventually(desk.running, lambda found: found[0] == "True", timeout=5)
            await desk.reports.end(desk.name)


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
async def test_a_management_api_in_trouble_keeps_no_instance_from_running_or_ending(
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
        # It is back, and is told what is true by then.
        monkeypatch.undo()
        desk.client.silent, desk.client.fault = False, None
        await eventually(desk.running, lambda found: found == ("False", "Starting"))


async def test_what_cannot_start_is_told_once_and_stays_announced(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        for _ in range(5):
            await desk.reports.announce(desk.cluster)
            desk.reports.report_failure(desk.cluster, "no program")
            await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "CannotStart")
        assert (await desk.status())["instance"]["controlPlaneUID"] == desk.uid
        assert desk.client.writes == 2
        # Nobody wants it any more: there is none, and none will come.
        await desk.resolve(ready=False)
        desk.reports.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
        assert "instance" not in await desk.status()


async def test_instances_that_went_with_an_earlier_mcm_are_told_to_have_ended(
    desk: Desk, eventually: Eventually
) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.INSTANCE_RUNNING)
        await eventually(desk.running, lambda found: found[0] == "True")
    await desk.resolve(ready=False)
    again = desk.another()
    async with again.running():
        again.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))
    assert "instance" not in await desk.status()


async def test_what_another_mcm_announced_is_left_to_it_until_it_is_ours(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
    await desk.resolve(ready=False)
    desk.mine = False
    another = desk.another()
    async with another.running():
        another.look(desk.name)
        await another.end(desk.name)
        assert (await desk.running(), desk.client.writes) == (("False", "Starting"), 1)
        desk.mine = True
        another.look(desk.name)
        await eventually(desk.running, lambda found: found == ("False", "Ended"))


async def test_reporter_that_is_held_leaves_the_instance_of_another_mcm_announced(
    desk: Desk, eventually: Eventually
) -> None:
    await desk.reports.announce(desk.cluster)
    announced = (await desk.status())["instance"]
    await desk.caught_up()
    held = desk.another()
    async with held.running():
        held.update(desk.name, Reason.FOREIGN_CONTROLLER_MANAGER, message="another mcm works")
        await eventually(desk.running, lambda found: found == ("False", "ForeignControllerManager"))
        assert (await desk.status())["instance"] == announced


@pytest.mark.parametrize("failed", [False, True], ids=["ran", "could-not-start"])
async def test_what_this_run_announced_is_told_to_have_ended_though_it_is_not_ours_any_more(
    desk: Desk, eventually: Eventually, *, failed: bool
) -> None:
    """Also where the API refused that at first, and though the registration still wants an instance."""
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


async def test_what_another_mcm_announced_since_is_not_taken_for_ours(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.mine = False
        theirs = {"status": {"instance": {"controlPlaneUID": "uid-of-theirs"}}}
        await desk.admin.patch(REGISTRATIONS, desk.name, theirs, subresource="status")
        await eventually(
            lambda: desk.seen(desk.name),
            lambda found: found["status"]["instance"].items() >= theirs["status"]["instance"].items(),
        )
        await desk.reports.end(desk.name)
    assert (await desk.status())["instance"]["controlPlaneUID"] == "uid-of-theirs"


async def test_what_is_said_of_one_of_the_other_mode_is_left_alone(desk: Desk, eventually: Eventually) -> None:
    dedicated = desk.another(mode=RegistrationMode.DEDICATED)
    await desk.resolve(mode="Dedicated")
    dedicated.report_failure(desk.cluster, "profile 'Tiny' is not known")
    await dedicated.end(desk.name)
    await eventually(lambda: (desk.seen(desk.name) or {})["status"].get("conditions"))
    for _ in range(2):
        await desk.reports.end(desk.name)  # nothing of it is here: so it may have ended
    assert await desk.running() == ("False", "CannotStart")
    assert desk.client.writes == 1


async def test_an_instance_left_by_an_earlier_run_has_ended_though_its_registration_is_of_the_other_mode_by_now(
    desk: Desk,
) -> None:
    await desk.reports.announce(desk.cluster)
    await desk.resolve(mode="Dedicated")
    await desk.another().end(desk.name)
    assert await desk.running() == ("False", "Ended")


async def test_who_does_not_hold_its_lease_any_more_writes_nothing(desk: Desk, eventually: Eventually) -> None:
    """Whoever has taken it over speaks of it, and says the same: what is written late must not take that back."""
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
        # The other one has an instance, and goes without a word.
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
async def test_nobody_waits_for_a_silent_api_until_the_lease_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fault: Exception | None, unseen: bool
) -> None:
    """What ended has to be known to have ended before that, or mcm would end itself."""
    monkeypatch.setattr(
        "kplane.mcm.status.reporter._DEADLINE_SECONDS", 3600.0
    )  # of any other request: this test would not end
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.client.fault, desk.unseen = fault, unseen
        desk.client.silent, desk.seconds_left = True, 0.4
        await desk.reports.end(desk.name)
        assert await desk.running() == ("False", "Starting")


async def test_what_starts_is_called_by_its_program(desk: Desk) -> None:
    attributes = {**desk.cluster.attributes, "services": "Scheduler"}
    await desk.reports.announce(Cluster(desk.name, config=desk.cluster.config, attributes=attributes))
    [condition] = (await desk.status())["conditions"]
    assert condition["message"] == "kube-scheduler is starting"


async def test_a_registration_without_an_instance_is_not_written_to(desk: Desk) -> None:
    async with desk.reports.running():
        desk.reports.look(desk.name)
        await desk.reports.end(desk.name)
    assert desk.client.writes == 0
    assert await desk.running() == ("", "")


async def test_last_words_are_kept_to_their_end(desk: Desk, eventually: Eventually) -> None:
    async with desk.reports.running():
        await desk.reports.announce(desk.cluster)
        desk.reports.update(desk.name, Reason.STOP_FAILED, message="x" * 5000 + " and the reason")
        await eventually(desk.running, lambda found: found == ("False", "StopFailed"))
    [found] = [item for item in (await desk.status())["conditions"] if item["type"] == "Running"]
    assert found["message"].endswith("x and the reason")
    assert len(found["message"]) == 1000
