"""Numbers about a controller, for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from kplane.provider.durations import Durations

__all__ = ["ControllerStats", "Outcome"]

Outcome = Literal["success", "error", "requeue", "requeue_after"]
"""How a reconcile ended; label `result` of controller-runtime's metrics."""


class ControllerStats:
    """Counts since the controller was made. Counts of a cluster go with it; totals stay."""

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
        reconciler of the cluster of the request."""

    def count(self, cluster: str, outcome: Outcome) -> None:
        """Count a reconcile."""
        self.reconciles[outcome] += 1
        of_cluster = self.by_cluster.get(cluster)
        if of_cluster is not None:
            of_cluster[outcome] += 1
