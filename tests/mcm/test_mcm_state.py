"""State machine of an instance, without a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.mcm.instance.exits import OomKills
from kplane.mcm.instance.state import BlockingReason, InstanceState, Stage
from kplane.mcm.reasons import Reason
from kplane.workloads import ComponentState, Phase

AWAY = BlockingReason(Reason.API_SERVER_UNREACHABLE, "its API server does not answer")
HUNG = BlockingReason(Reason.KILLED, "it did not answer its health check")


def machine() -> InstanceState:
    return InstanceState(OomKills(Path("/nonexistent")))


def observe(state: InstanceState, *phases: Phase, message: str = "", exit_code: int | None = None) -> list[bool]:
    return [
        state.observe(ComponentState(name="a", phase=phase, message=message, exit_code=exit_code)) for phase in phases
    ]


@pytest.mark.parametrize(
    ("phases", "stage", "reason"),
    [
        ([], Stage.STARTING, Reason.STARTING),
        ([Phase.STARTING], Stage.STARTING, Reason.STARTING),
        ([Phase.READY], Stage.READY, Reason.INSTANCE_RUNNING),
        ([Phase.READY, Phase.UNREADY], Stage.UNREADY, Reason.UNREADY),
        ([Phase.READY, Phase.STOPPING], Stage.REPLACING, None),
        ([Phase.READY, Phase.STOPPING, Phase.ABSENT], Stage.STARTING, Reason.STARTING),
        ([Phase.BACKOFF], Stage.BACKOFF, Reason.BACKOFF),
        ([Phase.BACKOFF, Phase.STARTING], Stage.RESTARTING, Reason.BACKOFF),
        ([Phase.BACKOFF, Phase.STARTING, Phase.STOPPING, Phase.ABSENT], Stage.RESTARTING, Reason.BACKOFF),
        ([Phase.BACKOFF, Phase.STARTING, Phase.READY], Stage.READY, Reason.INSTANCE_RUNNING),
        ([Phase.ENDED], Stage.BACKOFF, Reason.BACKOFF),
    ],
)
def test_process_phases_set_stage_and_reason_of_an_instance(
    phases: list[Phase], stage: Stage, reason: Reason | None
) -> None:
    state = machine()
    state.start()
    observe(state, *phases)
    assert (state.stage, state.reason) == (stage, reason)
    assert state.failed is (stage in {Stage.BACKOFF, Stage.RESTARTING})
    assert (state.unready_since is not None) is (stage is Stage.UNREADY)


def test_refused_credentials_are_the_reason_of_a_ready_instance() -> None:
    state = machine()
    state.start()
    assert state.refuse("no rights")
    assert (state.reason, state.message) == (Reason.STARTING, "")
    observe(state, Phase.READY)
    assert (state.reason, state.message, state.last_error) == (Reason.CREDENTIALS_REFUSED, "no rights", "no rights")
    assert not state.refuse("no rights, again")
    observe(state, Phase.UNREADY)
    assert state.reason is Reason.UNREADY
    observe(state, Phase.READY)
    assert state.refuse("")
    assert (state.reason, state.message) == (Reason.INSTANCE_RUNNING, "")


def test_blocking_reason_applies_while_there_is_no_process() -> None:
    state = machine()
    assert not state.block(AWAY)
    assert (state.stage, state.reason, state.message) == (Stage.BLOCKED, *AWAY)
    state.start()
    assert (state.stage, state.reason, state.message) == (Stage.STARTING, *AWAY)
    observe(state, Phase.STARTING)
    assert (state.reason, state.message) == (Reason.STARTING, "")
    observe(state, Phase.READY)
    assert state.block(AWAY)
    observe(state, Phase.STOPPING, Phase.ABSENT)
    assert (state.stage, state.running) == (Stage.STOPPING, True)
    state.stop()
    assert (state.stage, state.running, state.reason) == (Stage.BLOCKED, False, AWAY.reason)


def test_exit_counts_once_and_its_message_stays_until_ready() -> None:
    state = machine()
    state.start()
    observe(state, Phase.BACKOFF, message="ended with exit code 3", exit_code=3)
    observe(state, Phase.BACKOFF, message="cannot be started")  # the next start made no process
    assert (state.exits, state.message) == ({Reason.BACKOFF: 1}, "cannot be started")
    observe(state, Phase.STARTING)
    assert state.message == "cannot be started"
    observe(state, Phase.READY)
    assert (state.message, state.last_error) == ("", "cannot be started")


def test_exit_of_a_hung_process_does_not_end_the_restart_turn() -> None:
    state = machine()
    state.start()
    observe(state, Phase.READY, Phase.UNREADY)
    state.kill(HUNG)
    assert observe(state, Phase.BACKOFF, message="was ended", exit_code=-9) == [False]
    assert (state.exits, state.message) == ({Reason.KILLED: 1}, f"{HUNG.message}; it was ended")
    assert observe(state, Phase.STARTING, Phase.READY) == [False, True]


ACTIONS = st.sampled_from(["start", "fail", "block", "stop", "kill", "follow", *Phase])


@given(st.lists(ACTIONS))
def test_state_is_consistent_after_any_actions(actions: list[str]) -> None:
    state, exits, retry = machine(), 0, False
    for action in actions:
        match action:
            case "start":
                retry = state.reason is AWAY.reason
                state.start()
            case "fail":
                state.fail_to_start(AWAY)
            case "block":
                assert state.block(AWAY) is (state.stage is Stage.STOPPING)
            case "stop":
                state.block(AWAY)
                state.stop()
            case "kill":
                state.kill(HUNG)
            case "follow":
                state.follow("changes are not followed")
            case _:
                retry = False
                exits += action == Phase.BACKOFF
                observe(state, Phase(action))
        assert state.running is (state.stage not in {Stage.PENDING, Stage.BLOCKED})
        blocked = state.stage in {Stage.BLOCKED, Stage.STOPPING} or (retry and state.stage is Stage.STARTING)
        assert (state.reason is AWAY.reason) is blocked
        assert (state.reason is None) is (state.stage is Stage.REPLACING)
        assert (state.unready_since is not None) is (state.stage is Stage.UNREADY)
        assert sum(state.exits.values()) <= exits
