"""Counters of a controller, for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from kplane.provider.durations import Durations

__all__ = ["ControllerStats", "Outcome"]

Outcome = Literal["success", "error", "requeue", "requeue_after"]
"""Outcome of a reconcile; label `result` of controller-runtime's metrics."""


class ControllerStats:
    """Counts since the start of the controller. A cluster that leaves takes its counts along; totals stay."""

    def __init__(self) -> None:
        self.reconciles: Final[Counter[Outcome]] = Counter()
        """Counts over all clusters, including clusters that have left."""
        self.by_cluster: Final[dict[str, Counter[Outcome]]] = {}
        """Counts of each engaged cluster."""
        self.durations: Final = Durations()
        self.timeouts = 0
        """Number of reconciles that exceeded the timeout; these count as errors too."""
        self.dropped: Final[Counter[str]] = Counter()
        """Number of dropped requests by reason: `gone` (the cluster has left), `not_owned` (another process owns the
        cluster), `not_found` (the reconciler did not find the cluster)."""

    def count(self, cluster: str, outcome: Outcome) -> None:
        """Count a reconcile."""
        self.reconciles[outcome] += 1
        of_cluster = self.by_cluster.get(cluster)
        if of_cluster is not None:
            of_cluster[outcome] += 1
