"""Metrics of the operator. Those of its controllers and of their queues are the manager's."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.api import ControlPlane, ControlPlanePhase, MigrationStep
from kplane.api.conditions import HIBERNATED, WAITS_FOR_ROOM
from kplane.api.reasons import Reason
from kplane.controlplane_operator.not_ready_metrics import not_ready_families
from kplane.controlplane_operator.watch.cache import Store
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = ["Inventory", "Metrics"]

_BOOTSTRAP_BUCKETS: Final = (1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600)
_HOLD_BUCKETS: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
_UNDER_WAY: Final = frozenset(step for step in MigrationStep if not step.is_cut)


class Metrics:
    """Metrics of one operator, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._failures = Counter(
            "kplane_reconcile_failures",
            "Reconciliations that ended with a failure, by the reason in the object's conditions",
            ["controller", "reason"],
            registry=self.registry,
        )
        self._bootstrap = Histogram(
            "kplane_bootstrap_seconds",
            "How long control planes took from their creation until they were published for the first time",
            buckets=_BOOTSTRAP_BUCKETS,
            registry=self.registry,
        )
        self._holds = Histogram(
            "kplane_migration_hold_seconds",
            "How long writes waited while control planes changed their home",
            buckets=_HOLD_BUCKETS,
            registry=self.registry,
        )
        self._deleted_keys = Counter(
            "kplane_deleted_keys",
            "Keys deleted from the shared etcd, of control planes that were destroyed",
            registry=self.registry,
        )

    def migrated(self, held_seconds: float) -> None:
        """Record a completed migration; `held_seconds` is the time for which its writes waited."""
        self._holds.observe(held_seconds)

    def published(self, control_plane: ControlPlane) -> None:
        """Record the first publication of a control plane."""
        created = control_plane.metadata.creation_timestamp
        if created is not None:
            self._bootstrap.observe(max(0.0, (datetime.now(UTC) - created).total_seconds()))

    def keys_deleted(self, count: int) -> None:
        """Record the number of deleted keys of a control plane."""
        self._deleted_keys.inc(count)

    def condition_failed(self, controller: str, *, reason: Reason) -> None:
        """Count a reconciliation that ended with this reason in a condition, unless it is part of normal work."""
        if not reason.expected:
            self._failures.labels(controller, reason).inc()

    def elected(self, lease: str, *, leading: Callable[[], bool]) -> None:
        """Register a gauge that shows at each scrape whether this operator holds the Lease with this name."""
        text = "Whether this one holds the Lease: 1, or 0"
        gauge = Gauge("leader_election_master_status", text, ["name"], registry=self.registry)
        gauge.labels(lease).set_function(leading)


class Inventory(Collector):
    """Counts control planes by phase and state at each scrape."""

    def __init__(self, control_planes: Store) -> None:
        self._control_planes = control_planes

    @override
    def collect(self) -> Iterable[Metric]:
        phases = Tally(obj.get("status", {}).get("phase") or "Pending" for obj in self._control_planes)
        by_phase = GaugeMetricFamily("kplane_control_planes", "Control planes by phase", labels=["phase"])
        for phase in ControlPlanePhase:
            by_phase.add_metric([phase], phases[phase])
        yield by_phase
        yield from not_ready_families(self._control_planes)
        yield _on_demand(self._control_planes)
        yield _migrations(self._control_planes)


def _on_demand(control_planes: Store) -> Metric:
    """Count the published control planes that start on demand, by their condition Hibernated."""
    states: Tally[str] = Tally()
    for obj in control_planes:
        if hibernated := stored_condition(obj, HIBERNATED):
            waits = hibernated["reason"] == WAITS_FOR_ROOM
            states["waiting" if waits else "asleep" if hibernated["status"] == "True" else "awake"] += 1
    gauge = GaugeMetricFamily(
        "kplane_on_demand_control_planes",
        "Control planes that start on demand: awake, asleep, or waiting until others sleep",
        labels=["state"],
    )
    for state in ("awake", "asleep", "waiting"):
        gauge.add_metric([state], states[state])
    return gauge


def _migrations(control_planes: Store) -> Metric:
    """Return a gauge with the start time of each migration that is in progress."""
    gauge = GaugeMetricFamily(
        "kplane_migration_started_timestamp_seconds",
        "Since when the data of a control plane move to another home",
        labels=["control_plane"],
    )
    for obj in control_planes:
        migration = (obj.get("status") or {}).get("migration") or {}
        if migration.get("step") in _UNDER_WAY and "startedTime" in migration:
            started = datetime.fromisoformat(migration["startedTime"])
            gauge.add_metric([obj["metadata"]["name"]], started.timestamp())
    return gauge
