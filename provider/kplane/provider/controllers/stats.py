"""What a controller did, as plain numbers; whoever shows metrics reads them."""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Final, Literal

__all__ = ["BOUNDS_SECONDS", "ControllerStats", "Durations", "Outcome"]

Outcome = Literal["success", "error", "requeue", "requeue_after"]
"""How a reconcile ended; label `result` of controller-runtime's metrics."""

BOUNDS_SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75,
    2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
)  # fmt: skip
"""Upper bounds of the buckets of controller-runtime's histogram controller_runtime_reconcile_time_seconds."""


class Durations:
    """A histogram: `buckets[i]` counts those from bound i - 1 to `BOUNDS_SECONDS[i]`; the last one those above all."""

    def __init__(self) -> None:
        self.buckets: Final = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.buckets)

    def note(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect.bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds


class ControllerStats:
    """Counts since the controller was made. Those of a cluster go with it, the totals stay."""

    def __init__(self) -> None:
        self.reconciles: Final[Counter[Outcome]] = Counter()
        """Over all clusters, those that are gone included."""
        self.by_cluster: Final[dict[str, Counter[Outcome]]] = {}
        """Of the clusters that are engaged now."""
        self.durations: Final = Durations()
        self.timeouts = 0
        """Reconciles that took too long; they count as errors too."""
        self.dropped: Final[Counter[str]] = Counter()
        """Requests that were thrown away: `gone` is their cluster, `not_owned` by this process, `not_found` says the
        reconciler of a cluster."""

    def count(self, cluster: str, outcome: Outcome) -> None:
        """Count a reconcile."""
        self.reconciles[outcome] += 1
        of_cluster = self.by_cluster.get(cluster)
        if of_cluster is not None:
            of_cluster[outcome] += 1
