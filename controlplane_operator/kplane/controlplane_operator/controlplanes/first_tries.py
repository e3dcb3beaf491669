"""Grace for failures that may pass: the first attempts of a step are reported as a wait, later attempts as a failure.

At a start, requests may fail while etcd elects its leader or an API server creates its roles. Such a failure passes
within seconds. Warnings about it would hide lasting failures, such as a full disk.
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
"""Number of consecutive failures from which on a failure is reported."""
_LASTS_SECONDS: Final = 10.0
"""Minimum time since the first of these failures. Events of watched objects may cause several attempts within a
second."""


@dataclass(slots=True)
class _Tries:
    reason: Reason
    since: float
    count: int = 0


class FirstTries:
    """Counts consecutive failures for the same reason, by control plane."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        self._tries: dict[Hashable, _Tries] = {}

    def judge(self, key: Hashable, failure: ConditionError, *, conditions: Iterable[Condition] = ()) -> ConditionError:
        """Count a failure, and return it in the form for the status.

        During the first attempts, the result has the waiting reason `Reason.at_first` and the same message. A failure
        without such a reason is returned unchanged and resets the count. `conditions` are those of the present status.
        A failure whose reason they contain counts as lasting, because a restarted operator has no count of it.
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
        is_reported = any(condition.reason == failure.reason for condition in conditions)
        if is_reported or (tries.count >= _TRIES and now - tries.since >= _LASTS_SECONDS):
            return failure
        return ConditionError(waiting, failure.message, waits_for_event=failure.waits_for_event)

    def forget(self, key: Hashable) -> None:
        """Reset the count, because the control plane succeeded or is gone."""
        self._tries.pop(key, None)
