"""Turns of migrations: how many run at once, and when to try again after a failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api import ControlPlane, MigrationStep
from kplane.api.clocks import is_future
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider.aio.backoff import Backoff

__all__ = ["Turns"]

_AT_ONCE: Final = 4
"""Maximum number of control planes in migration at a time. Each has an API server in both homes."""
_LONG: Final = timedelta(minutes=5)
"""Time after which a migration that still runs no longer counts against the limit."""
_UNDER_WAY: Final = frozenset(str(step) for step in MigrationStep if not step.is_cut)
_ENDING_SECONDS: Final = 30.0
"""Maximum time that controllers are idle while the cut waits for another condition."""


@dataclass(slots=True)
class _Wait:
    """State of the wait before the next attempt to change the home."""

    until: float = 0.0
    """End of the wait, by the monotonic clock."""
    why: str = ""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=2.0, maximum_seconds=300.0))


class Turns:
    """Limits concurrent migrations and delays attempts after failures. Its state lasts as long as the operator runs."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._waits: dict[str, _Wait] = {}
        """Waits before the next attempt, by uid of the control plane."""
        self._ending: dict[str, float] = {}
        """By uid, the monotonic time until which controllers may be idle before they continue."""
        self._beginning: set[str] = set()
        """Uids of control planes that begin a migration which their status does not show yet."""

    @contextlib.contextmanager
    def beginning(self, control_plane: ControlPlane) -> Iterator[None]:
        """Reserve a turn within the context. A changed class may move all its control planes, but not all at once.

        A migration that runs for more than five minutes does not count. Raises ConditionError if the limit is reached.
        """
        uid, since = control_plane.metadata.uid or "", datetime.now(UTC) - _LONG
        under_way = [as_recorded(obj) for obj in self._context.stores.control_planes if _step(obj) in _UNDER_WAY]
        others = {moving.metadata.uid or "" for moving in under_way if _began_after(moving, since)} | self._beginning
        others.discard(uid)
        if len(others) >= _AT_ONCE:
            message = f"it moves after others: {len(others)} do now, and {_AT_ONCE} may begin at once"
            raise ConditionError(Reason.MIGRATING, message)
        self._beginning.add(uid)
        try:
            yield
        finally:
            self._beginning.discard(uid)

    def check_next_try(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError while the control plane waits after a failed attempt."""
        waits = self._waits.get(control_plane.metadata.uid or "")
        if waits is not None and (left := waits.until - time.monotonic()) > 0:
            raise ConditionError(Reason.MIGRATING, f"{waits.why}; the next try is in {left:.0f} s")

    def is_ending_for_long(self, control_plane: ControlPlane) -> bool:
        """Return whether controllers have been idle for the maximum time, so that they have to continue.

        The first call starts the measurement.
        """
        now = time.monotonic()
        return now >= self._ending.setdefault(control_plane.metadata.uid or "", now + _ENDING_SECONDS)

    def put_off(self, control_plane: ControlPlane, why: str) -> None:
        """Delay the next attempt to change the home; the delay grows with each failure."""
        uid = control_plane.metadata.uid or ""
        self._ending.pop(uid, None)
        waits = self._waits.setdefault(uid, _Wait())
        waits.until, waits.why = time.monotonic() + waits.backoff.next_delay(), why
        self._context.events.record(control_plane, reason="MigrationRetried", message=why, warning=True)

    def forget(self, uid: str) -> None:
        """Discard the state of a control plane."""
        self._waits.pop(uid, None)
        self._ending.pop(uid, None)


def _step(obj: Object) -> str | None:
    step: str | None = ((obj.get("status") or {}).get("migration") or {}).get("step")
    return step


def _began_after(control_plane: ControlPlane, moment: datetime) -> bool:
    began = control_plane.status.migration.started_time if control_plane.status.migration is not None else None
    # A start time in the future comes from a wrong clock, so the real start is unknown and others do not wait.
    return began is not None and began > moment and not is_future(began, now=datetime.now(UTC))
