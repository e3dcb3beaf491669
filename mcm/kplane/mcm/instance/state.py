"""States of an instance: all stages, all transitions, and the reason that a registration reports for each stage."""

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
    """Stage in the life of an instance."""

    PENDING = enum.auto()
    """mcm has not tried to start the instance yet."""
    BLOCKED = enum.auto()
    """The instance does not run; a `BlockingReason` has the cause."""
    STOPPING = enum.auto()
    """The instance became blocked while its process ran, and the process has not ended yet."""
    STARTING = enum.auto()
    """The process runs, or is about to run, and was never ready."""
    READY = enum.auto()
    UNREADY = enum.auto()
    """The instance was ready, and does not answer its health check any more."""
    REPLACING = enum.auto()
    """The process ends, so that a process with a changed description can start."""
    BACKOFF = enum.auto()
    """The process ended by itself, and the runtime restarts it after a while."""
    RESTARTING = enum.auto()
    """The process was restarted after it ended by itself, and is not ready yet."""


class BlockingReason(NamedTuple):
    """Reason why an instance does not run, or was killed."""

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
"""Next stage of a running instance, by the phase of its process."""

_AFTER_FAILURE: Final[Mapping[Phase, Stage]] = {
    **_BY_PHASE,
    **dict.fromkeys((Phase.ABSENT, Phase.STARTING, Phase.STOPPING), Stage.RESTARTING),
}
"""Next stage after the process ended by itself: its restarts are not reported as STARTING."""

_REASONS: Final = {
    Stage.PENDING: Reason.STARTING,
    Stage.STARTING: Reason.STARTING,
    Stage.READY: Reason.INSTANCE_RUNNING,
    Stage.UNREADY: Reason.UNREADY,
    Stage.REPLACING: None,
}


class InstanceState:
    """State machine of an instance: inputs are the actions of its owner and the changes of its process."""

    def __init__(self, oom_kills: OomKills) -> None:
        self.stage = Stage.PENDING
        self.exits: Counter[Reason] = Counter()
        """Number of times that the process ended by itself, by reason."""
        self.last_error = ""
        """Last problem, also if it is over."""
        self.unready_since: float | None = None
        """Start of the stage UNREADY, by time.monotonic; None in every other stage."""
        self._oom_kills = oom_kills
        self._blocking: BlockingReason | None = None
        self._kill: BlockingReason | None = None
        """Why mcm killed the process; None after the runtime has reported the end."""
        self._exit: tuple[Reason, str] | None = None
        """Reason and message of the end by itself, in the stages BACKOFF and RESTARTING."""
        self._unfollowed = ""
        """Why a changed description could not be applied."""
        self._refusal = ""
        """Why the API server refuses the instance's credentials."""

    @property
    def running(self) -> bool:
        """Whether the process runs, or is about to be restarted."""
        return self.stage not in _STOPPED

    @property
    def failed(self) -> bool:
        """Whether the process ended by itself and was not ready since."""
        return self.stage in _FAILED

    @property
    def reason(self) -> Reason | None:
        """Reason why the instance runs or does not run; None while the process is being replaced."""
        if self._blocking is not None:
            return self._blocking.reason
        if self.failed:
            return self._exit[0] if self._exit is not None else Reason.BACKOFF
        return Reason.CREDENTIALS_REFUSED if self._is_refused else _REASONS[self.stage]

    @property
    def message(self) -> str:
        """Present problem; empty if there is none, or if the runtime has a message of its own."""
        if self._blocking is not None:
            return self._blocking.message
        if self._is_refused:
            return self._refusal
        return self._unfollowed or (self._exit[1] if self._exit is not None else "")

    @property
    def _is_refused(self) -> bool:
        return self.stage is Stage.READY and bool(self._refusal)

    def refuse(self, refusal: str) -> bool:
        """Note a refusal of the instance's credentials, or its end if empty. Return whether that is a change."""
        news, self._refusal = bool(refusal) != bool(self._refusal), refusal
        self.last_error = refusal or self.last_error
        return news

    def start(self) -> None:
        """Note that the owner tries to start the process. The blocking reason stays until the runtime has a process."""
        self._unfollowed = ""
        self._enter(Stage.STARTING)

    def block(self, why: BlockingReason) -> bool:
        """Note a blocking reason. Return whether the owner must stop the process, and then call `stop`."""
        self._blocking = why
        self._enter(Stage.STOPPING if self.running else Stage.BLOCKED)
        return self.running

    def fail_to_start(self, why: BlockingReason) -> None:
        """Note that the owner failed to start the process."""
        self._blocking = why
        self._enter(Stage.BLOCKED)

    def stop(self) -> None:
        """Note that the owner has stopped the process."""
        self._unfollowed = ""
        self._enter(Stage.BLOCKED)

    def kill(self, why: BlockingReason) -> None:
        """Note that the owner has killed the process, which the runtime restarts."""
        self._kill = why

    def follow(self, problem: str = "") -> None:
        """Note that a changed description was applied, or with a `problem` that it could not be applied."""
        self._unfollowed = problem
        self.last_error = problem or self.last_error

    def observe(self, process: ComponentState) -> bool:
        """Note a change of the process in the runtime. Return whether a start that was under way is over."""
        # The end of a hung process does not end the turn: its restart begins in the same turn.
        hung = self._kill is not None and self._kill.reason is Reason.KILLED
        if process.phase is Phase.BACKOFF:
            self._note_end(process)
        elif process.phase is Phase.ABSENT:
            self._kill = None  # the owner stopped the process for another reason
        if self.running and self.stage is not Stage.STOPPING:
            self._blocking = None
            self._enter((_AFTER_FAILURE if self.failed else _BY_PHASE)[process.phase])
        return process.phase in {Phase.READY, Phase.BACKOFF, Phase.ENDED} and not hung

    def _note_end(self, process: ComponentState) -> None:
        if self.stage is Stage.BACKOFF and self._exit is not None:  # the restart failed
            self._exit = self._exit[0], process.message
        else:
            kill, self._kill = self._kill, None
            if kill is not None:
                out_of_memory = kill.reason is Reason.OUT_OF_MEMORY
            else:
                out_of_memory = process.exit_code == KILLED_BY and self._oom_kills.take()
            reason = exit_reason(process.exit_code, process.message, oom_killed=out_of_memory)
            self._exit = reason, f"{kill.message}; it {process.message}" if kill else process.message
            self.exits[reason] += 1
        self.last_error = self._exit[1]

    def _enter(self, stage: Stage) -> None:
        if stage is not self.stage:
            self.unready_since = time.monotonic() if stage is Stage.UNREADY else None
        if stage not in _FAILED:
            self._exit = None
        self.stage = stage
