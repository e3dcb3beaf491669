"""Where an instance is in its life: all states, all transitions, and what each state means for its registration."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from kplane.mcm.instance.exits import KILLED_BY, OomKills, exit_reason
from kplane.mcm.reasons import Reason
from kplane.workloads import ComponentState, Phase

__all__ = ["BlockingReason", "InstanceState", "Stage"]


class Stage(enum.Enum):
    """Where an instance is in its life."""

    PENDING = enum.auto()
    """mcm has not tried to start it yet."""
    BLOCKED = enum.auto()
    """It does not run, and a `BlockingReason` says why."""
    STOPPING = enum.auto()
    """It became blocked while its process ran, and the process has not ended yet."""
    STARTING = enum.auto()
    """Its process runs, or is about to, and was never ready."""
    READY = enum.auto()
    UNREADY = enum.auto()
    """It was ready, and does not answer its health check any more."""
    REPLACING = enum.auto()
    """Its process ends, so that a process with a changed description can start."""
    BACKOFF = enum.auto()
    """It ended by itself, and the runtime starts it again after a while."""
    RESTARTING = enum.auto()
    """It was started again after it ended by itself, and is not ready yet."""


class BlockingReason(NamedTuple):
    """Why an instance is not run, or was killed."""

    reason: Reason
    message: str


_STOPPED: Final = frozenset({Stage.PENDING, Stage.BLOCKED})
_FAILED: Final = frozenset({Stage.BACKOFF, Stage.RESTARTING})

_BY_PHASE: Final[Mapping[Phase, Stage]] = {
    Phase.ABSENT: Stage.STARTING,
    Phase.STARTING: Stage.STARTING,
    Phase.READY: Stage.READY,
    Phase.UNREADY: Stage.UNREADY,
    Phase.BACKOFF: Stage.BACKOFF,
    Phase.STOPPING: Stage.REPLACING,
    Phase.ENDED: Stage.BACKOFF,
}
"""Where a phase of its process takes an instance that runs."""

_AFTER_FAILURE: Final[Mapping[Phase, Stage]] = {
    **_BY_PHASE,
    **dict.fromkeys((Phase.ABSENT, Phase.STARTING, Phase.STOPPING), Stage.RESTARTING),
}
"""The same of one that ended by itself: until it is ready, its starts are no news."""

_REASONS: Final = {
    Stage.PENDING: Reason.STARTING,
    Stage.STARTING: Reason.STARTING,
    Stage.READY: Reason.INSTANCE_RUNNING,
    Stage.UNREADY: Reason.UNREADY,
    Stage.REPLACING: None,
}


class InstanceState:
    """Decides in which stage an instance is, from what its owner does and from what happens to its process."""

    def __init__(self, oom_kills: OomKills) -> None:
        self.stage = Stage.PENDING
        self.exits: Counter[Reason] = Counter()
        """How often it ended by itself, by the reason."""
        self.last_error = ""
        """What was wrong last, also if that is over."""
        self.unready_since: float | None = None
        """By time.monotonic; None in every stage but UNREADY."""
        self._oom_kills = oom_kills
        self._blocking: BlockingReason | None = None
        self._kill: BlockingReason | None = None
        """Why mcm has killed the process, until the runtime reports its end."""
        self._exit: tuple[Reason, str] | None = None
        """Why it ended by itself, in the stages BACKOFF and RESTARTING."""
        self._unfollowed = ""
        """Why a changed description is not followed."""
        self._refusal = ""
        """Why its API server refuses its credentials."""

    @property
    def running(self) -> bool:
        """Whether there is a process, or one is about to be started again."""
        return self.stage not in _STOPPED

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and was not ready since."""
        return self.stage in _FAILED

    @property
    def reason(self) -> Reason | None:
        """Why it runs or does not; None while that is about to change."""
        if self._blocking is not None:
            return self._blocking.reason
        if self.failed:
            return self._exit[0] if self._exit is not None else Reason.BACKOFF
        return Reason.CREDENTIALS_REFUSED if self._is_refused else _REASONS[self.stage]

    @property
    def message(self) -> str:
        """What is wrong; empty if the runtime knows best."""
        if self._blocking is not None:
            return self._blocking.message
        if self._is_refused:
            return self._refusal
        return self._unfollowed or (self._exit[1] if self._exit is not None else "")

    @property
    def _is_refused(self) -> bool:
        return self.stage is Stage.READY and bool(self._refusal)

    def refuse(self, refusal: str) -> bool:
        """Its API server refuses its credentials, or does not any more. Returns whether that is news."""
        news, self._refusal = bool(refusal) != bool(self._refusal), refusal
        self.last_error = refusal or self.last_error
        return news

    def start(self) -> None:
        """Its owner tries to start the process. What was in its way is reported until the runtime has a process."""
        self._unfollowed = ""
        self._enter(Stage.STARTING)

    def block(self, why: BlockingReason) -> bool:
        """Something is in its way. Returns whether its owner has to end the process, and to call `stop` after that."""
        self._blocking = why
        self._enter(Stage.STOPPING if self.running else Stage.BLOCKED)
        return self.running

    def fail_to_start(self, why: BlockingReason) -> None:
        """The start that its owner tried has failed."""
        self._blocking = why
        self._enter(Stage.BLOCKED)

    def stop(self) -> None:
        """Its owner has ended the process."""
        self._unfollowed = ""
        self._enter(Stage.BLOCKED)

    def kill(self, why: BlockingReason) -> None:
        """Its owner has killed the process, which the runtime starts again."""
        self._kill = why

    def follow(self, problem: str = "") -> None:
        """A changed description was followed, or could not be."""
        self._unfollowed = problem
        self.last_error = problem or self.last_error

    def observe(self, process: ComponentState) -> bool:
        """The runtime reports a change of the process. Returns whether a start that was under way is over."""
        # The end of an instance that hung begins the start in its turn.
        hung = self._kill is not None and self._kill.reason is Reason.KILLED
        if process.phase is Phase.BACKOFF:
            self._note_end(process)
        elif process.phase is Phase.ABSENT:
            self._kill = None  # the owner ended the process for another reason
        if self.running and self.stage is not Stage.STOPPING:
            self._blocking = None
            self._enter((_AFTER_FAILURE if self.failed else _BY_PHASE)[process.phase])
        return process.phase in {Phase.READY, Phase.BACKOFF, Phase.ENDED} and not hung

    def _note_end(self, process: ComponentState) -> None:
        if self.stage is Stage.BACKOFF and self._exit is not None:  # it could not be started again
            self._exit = self._exit[0], process.message
        else:
            ours, self._kill = self._kill, None
            if ours is not None:
                out_of_memory = ours.reason is Reason.OUT_OF_MEMORY
            else:
                out_of_memory = process.exit_code == KILLED_BY and self._oom_kills.take()
            reason = exit_reason(process.exit_code, process.message, oom_killed=out_of_memory)
            self._exit = reason, f"{ours.message}; it {process.message}" if ours else process.message
            self.exits[reason] += 1
        self.last_error = self._exit[1]

    def _enter(self, stage: Stage) -> None:
        if stage is not self.stage:
            self.unready_since = time.monotonic() if stage is Stage.UNREADY else None
        if stage not in _FAILED:
            self._exit = None
        self.stage = stage
