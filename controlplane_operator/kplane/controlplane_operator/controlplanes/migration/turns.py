"""When a control plane may take a step: after others that move, and some time after a try that failed."""

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
"""So many control planes move at a time, each with an API server in either home."""
_LONG: Final = timedelta(minutes=5)
"""After so much time, others begin although one still moves."""
_UNDER_WAY: Final = frozenset(str(step) for step in MigrationStep if not step.is_cut)
_ENDING_SECONDS: Final = 30.0
"""So long controllers do nothing while something else is waited for."""


@dataclass(slots=True)
class _Wait:
    """Before the next try to change a home."""

    until: float = 0.0
    """By the monotonic clock."""
    why: str = ""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=2.0, maximum_seconds=300.0))


class Turns:
    """Remembers tries as long as the operator runs. A ConditionError says why to wait."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._waits: dict[str, _Wait] = {}
        """By uid."""
        self._ending: dict[str, float] = {}
        """By uid: until when, by the monotonic clock, controllers may be without work before they continue."""
        self._beginning: set[str] = set()
        """Uids of those that have a turn, and whose status does not say it yet."""

    @contextlib.contextmanager
    def beginning(self, control_plane: ControlPlane) -> Iterator[None]:
        """Have a turn to begin, within. The change of a class may move all that follow it: not at once.

        One that takes very long keeps nobody back. Raises ConditionError where others have their turn.
        """
        uid, since = control_plane.metadata.uid or "", datetime.now(UTC) - _LONG
        under_way = [as_recorded(obj) for obj in self._context.stores.control_planes if _step(obj) in _UNDER_WAY]
        others = {each.metadata.uid or "" for each in under_way if _began_after(each, since)} | self._beginning
        others.discard(uid)
        if len(others) >= _AT_ONCE:
            said = f"it moves after others: {len(others)} do now, and {_AT_ONCE} may begin at once"
            raise ConditionError(Reason.MIGRATING, said)
        self._beginning.add(uid)
        try:
            yield
        finally:
            self._beginning.discard(uid)

    def check_next_try(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError for some time after a try that failed."""
        waits = self._waits.get(control_plane.metadata.uid or "")
        if waits is not None and (left := waits.until - time.monotonic()) > 0:
            raise ConditionError(Reason.MIGRATING, f"{waits.why}; the next try is in {left:.0f} s")

    def is_ending_for_long(self, control_plane: ControlPlane) -> bool:
        """Tell whether controllers have been without work for so long that they continue until the next try."""
        now = time.monotonic()
        return now >= self._ending.setdefault(control_plane.metadata.uid or "", now + _ENDING_SECONDS)

    def put_off(self, control_plane: ControlPlane, why: str) -> None:
        """Have the next try to change the home be later, the more of them have failed."""
        uid = control_plane.metadata.uid or ""
        self._ending.pop(uid, None)
        waits = self._waits.setdefault(uid, _Wait())
        waits.until, waits.why = time.monotonic() + waits.backoff.next_delay(), why
        self._context.events.record(control_plane, reason="MigrationRetried", message=why, warning=True)

    def forget(self, uid: str) -> None:
        """Remember nothing more of a control plane."""
        self._waits.pop(uid, None)
        self._ending.pop(uid, None)


def _step(obj: Object) -> str | None:
    step: str | None = ((obj.get("status") or {}).get("migration") or {}).get("step")
    return step


def _began_after(control_plane: ControlPlane, moment: datetime) -> bool:
    began = control_plane.status.migration.started_time if control_plane.status.migration is not None else None
    # A migration that a clock put into the future began at an unknown time. Others do not wait for it.
    return began is not None and began > moment and not is_future(began, now=datetime.now(UTC))
