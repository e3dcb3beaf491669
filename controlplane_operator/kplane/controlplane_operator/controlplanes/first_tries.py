"""Failures before they last: the first tries of a step say that the control plane waits, and later ones why it fails.

At a start, an etcd that elects its leader or an API server that makes its roles refuses some requests. Such a refusal
passes within seconds. A Warning of each would hide the failures that last, such as a full disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from kplane.api import Condition
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["FirstTries"]

_TRIES: Final = 4
"""Number of failures in succession from which on a failure lasts."""
_LASTS_SECONDS: Final = 10.0
"""Time from the first of these failures. Events of watched objects may cause several tries within a second."""


@dataclass(slots=True)
class _Tries:
    reason: Reason
    since: float
    count: int = 0


class FirstTries:
    """Counts, for each control plane, the failures in succession for one reason."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in seconds."""
        self._clock = clock
        self._tries: dict[Hashable, _Tries] = {}

    def judge(self, key: Hashable, failure: ConditionError, *, conditions: Iterable[Condition] = ()) -> ConditionError:
        """Count a failure, and return it as the status is to tell it.

        During the first tries it has the reason of waiting that `Reason.at_first` names, with the same message. A
        failure that is told at once, or a wait, begins the count of the control plane anew. A failure that
        `conditions`, those of the present status, tell already lasts: an operator that starts has no count of it.
        """
        waiting = failure.reason.at_first
        if waiting is None:
            self.forget(key)
            return failure
        now = self._clock()
        tries = self._tries.get(key)
        if tries is None or tries.reason is not failure.reason:
            tries = self._tries[key] = _Tries(failure.reason, since=now)
        tries.count += 1
        told = any(condition.reason == failure.reason for condition in conditions)
        if told or (tries.count >= _TRIES and now - tries.since >= _LASTS_SECONDS):
            return failure
        return ConditionError(waiting, failure.message, waits_for_event=failure.waits_for_event)

    def forget(self, key: Hashable) -> None:
        """Begin the count anew: the control plane got through, or is gone."""
        self._tries.pop(key, None)
