"""Has an instance started again that hangs: its users cannot have a liveness probe of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mcm.instance import Instance
from provider.backoff import delay_after

__all__ = ["Liveness"]

_FORGOTTEN: Final = 2
"""After so many times the longest wait without an end for this, an instance starts over with the shortest."""


class Liveness:
    """Looks at an instance each time that its API server is looked at, and ends one that does not answer for too long.

    It is what the livenessProbe of kube-controller-manager in a static pod is for (cmd/kubeadm/app/phases/controlplane/
    manifests.go), with a longer wait, because processors may be busy. Only the time counts in which the API server
    answered, and only of an instance that was ready before. The wait doubles from `initial_seconds` to
    `maximum_seconds` with each end. `now` is the clock of `Instance.unready_since`.
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
        self._answers_since: float | None = None

    async def review(self, *, answered: bool) -> None:
        """Look; end it where that is due and, in its turn, still is. `answered` is whether its API server did."""
        now = self._now()
        if not answered:
            self._answers_since = None
            return
        if self._answers_since is None:
            self._answers_since = now
        if now - self._ended_at > _FORGOTTEN * self._maximum_seconds:
            self._ends = 0
        since = self._instance.unready_since
        patience = delay_after(self._ends, initial_seconds=self._initial_seconds, maximum_seconds=self._maximum_seconds)
        if since is None or now - max(since, self._answers_since) < patience:
            return
        if await self._instance.end_hung(since):
            self._ends += 1
            self._ended_at = self._now()
