"""Has an instance started again that hangs: its users cannot have a liveness probe of their own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from kplane.mcm.instance.lifecycle import Instance
from kplane.provider.aio.backoff import delay_after

__all__ = ["Liveness"]

_FORGOTTEN: Final = 2
"""After so many times the longest wait without an end for this, an instance starts over with the shortest."""


class Liveness:
    """Looks at an instance each time that its API server is looked at, and ends one that does not answer for too long.

    It is what the livenessProbe of kube-controller-manager in a static pod is for (cmd/kubeadm/app/phases/controlplane/
    manifests.go), with a longer wait, because processors may be busy. It is for an instance that was ready before, and
    adds up the time since it is not, but only what is between two looks in a row which the API server answered. The
    wait doubles from `initial_seconds` to `maximum_seconds` with each end. `now` is the clock of
    `Instance.unready_since`.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        initial_seconds: float,
        maximum_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance = instance
        self._now = now
        self._initial_seconds = initial_seconds
        self._maximum_seconds = maximum_seconds
        self._ends = 0
        self._ended_at = 0.0
        self._answered_at: float | None = None
        """When its API server was looked at last; None where it did not answer then."""
        self._unready_since: float | None = None
        self._unready_seconds = 0.0
        """Of those since then, what counts."""

    async def review(self, *, answered: bool, look: Callable[[], Awaitable[bool]]) -> None:
        """Look; end it where that is due and, in its turn, still is.

        `answered` is whether its API server did just now, and `look` asks that again.
        """
        now, since = self._now(), self._instance.unready_since
        answered_at, self._answered_at = self._answered_at, now if answered else None
        if since != self._unready_since:
            self._unready_since, self._unready_seconds = since, 0.0
        if since is None or not answered:
            return
        if answered_at is not None:
            self._unready_seconds += now - max(since, answered_at)
        if now - self._ended_at > _FORGOTTEN * self._maximum_seconds:
            self._ends = 0
        patience = delay_after(self._ends, initial_seconds=self._initial_seconds, maximum_seconds=self._maximum_seconds)
        if self._unready_seconds >= patience and await self._instance.end_hung(since, look=look):
            self._ends += 1
            self._ended_at = self._now()
