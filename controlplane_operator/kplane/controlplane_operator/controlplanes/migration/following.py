"""Continuous copies of data to a new home, for each control plane in migration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, NoReturn

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Compacted, DataError
from kplane.data.follow import Follower, Place
from kplane.provider import ProviderError
from kplane.provider.aio.backoff import Backoff
from kplane.workloads import WorkloadsError

__all__ = ["Copies", "Copy"]

_log: Final = logging.getLogger(__name__)

_FAILURES: Final = (DataError, KeyspaceError, ConditionError, ProviderError, WorkloadsError)
_FORGET_SECONDS: Final = 3.0
_MOST_COMPACTED: Final = 3
_STOPPED: Final = (
    "failed to copy the data: {times} times, etcd compacted their revision before all were read, and it keeps one for 5"
    " to 10 minutes. The copy has stopped: set the spec back, give etcd more processor time or delete objects, and move"
    " the control plane again"
)

Connect = Callable[[], AbstractAsyncContextManager[Place]]
"""Connects to a home; the connection lasts until the context closes."""


@dataclass(slots=True)
class Copy:
    """State of a copy, in the memory of this operator."""

    source: Connect
    target: Connect
    changed: Callable[[], None]
    """Callback for changes of state; progress figures do not count."""
    follower: Follower | None = None
    complete: bool = False
    """Whether all data have been copied and the copy follows further changes."""
    problem: str | None = None
    """Reason why the copy does not follow now; None if it does."""
    compacted: int = 0
    """Number of consecutive attempts during which etcd compacted the revision before all data were copied."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.5, maximum_seconds=15.0))

    @property
    def lag_seconds(self) -> float:
        """Seconds for which the target has lacked changes of the source; 0.0 if it is up to date."""
        return self.follower.lag_seconds if self.follower is not None else 0.0


class Copies:
    """Runs the copies. After a restart of the operator, a copy starts again and writes only the differences."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[Copy, asyncio.Task[None]]] = {}
        """Copies and their tasks, by uid of the control plane."""
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> NoReturn:
        """Own the tasks until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")

    def begin(self, uid: str, *, source: Connect, target: Connect, changed: Callable[[], None]) -> Copy:
        """Start the copy of a control plane that has none."""
        if self._group is None:
            raise RuntimeError("copies need `run` to be running")
        copy = Copy(source, target, changed)
        self._tasks[uid] = copy, self._group.create_task(_keep(copy), name=f"copy the data of control plane {uid}")
        return copy

    def find(self, uid: str) -> Copy | None:
        """Return the copy of a control plane; None if there is none."""
        entry = self._tasks.get(uid)
        return entry[0] if entry is not None else None

    async def end(self, uid: str) -> None:
        """Stop the copy of a control plane, if there is one. The copied data stay."""
        if (entry := self._tasks.pop(uid, None)) is None:
            return
        copy, task = entry
        task.cancel()
        await asyncio.wait([task])
        if copy.follower is None:
            return
        with contextlib.suppress(*_FAILURES, TimeoutError):
            async with asyncio.timeout(_FORGET_SECONDS), copy.source() as source, copy.target() as target:
                await Follower(source, target).forget()


async def _keep(copy: Copy) -> None:
    """Copy and follow, and start again after a failure.

    Returns after three consecutive copies for which etcd compacted the revision too early.
    """
    while copy.compacted < _MOST_COMPACTED:
        try:
            async with copy.source() as source, copy.target() as target:
                copy.follower = Follower(source, target)
                await copy.follower.copy()
                copy.problem, copy.complete, copy.compacted = None, True, 0
                copy.backoff.reset()
                copy.changed()
                await copy.follower.run()
        except _FAILURES as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                # The failure of a task group that is cancelled at the same time hides the cancellation.
                raise asyncio.CancelledError from None
            _log.warning("a copy for a migration failed: %s", error)
            _failed(copy, error)
            copy.compacted = copy.compacted + 1 if isinstance(error, Compacted) else 0
        except Exception as error:  # noqa: BLE001 - a defect met by one control plane must not stop other copies
            _log.exception("a copy for a migration begins again")
            _failed(copy, error)
        await asyncio.sleep(copy.backoff.next_delay())
    copy.problem = _STOPPED.format(times=copy.compacted)
    copy.changed()


def _failed(copy: Copy, error: Exception) -> None:
    copy.complete, copy.problem = False, str(error)
    copy.changed()
