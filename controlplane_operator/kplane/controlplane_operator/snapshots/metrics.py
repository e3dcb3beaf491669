"""Prometheus metrics: age of the newest snapshot of each control plane with a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.api import SnapshotPhase
from kplane.controlplane_operator.schedule import Schedule
from kplane.controlplane_operator.snapshots.scheduler import scheduled_of, settings_of
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.watch.stores import Stores

__all__ = ["SnapshotMetrics"]


class SnapshotMetrics(Collector):
    """Collector that reads the caches at each scrape. A deleted control plane leaves no series behind."""

    def __init__(self, stores: Stores, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._stores = stores
        self._now = now

    @override
    def collect(self) -> Iterable[Metric]:
        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"kplane_control_plane_snapshot_{name}", text, labels=["control_plane"])

        newest = family("timestamp_seconds", "When the newest scheduled snapshot of a control plane was completed")
        due = family("due_timestamp_seconds", "Since when a scheduled snapshot of a control plane is due")
        schedules: dict[str, datetime | None] = {}
        for obj in self._stores.control_planes if self._any() else ():
            control_plane = as_recorded(obj)
            settings = settings_of(control_plane, stores=self._stores)
            if settings is None:
                continue
            if settings.schedule not in schedules:
                schedule = Schedule.read(settings.schedule)
                schedules[settings.schedule] = schedule.last(self._now()) if schedule is not None else None
            last, created = schedules[settings.schedule], control_plane.metadata.creation_timestamp
            if last is None or created is None:
                continue
            completed = [
                datetime.fromisoformat(status["completionTime"])
                for snapshot in scheduled_of(control_plane, stores=self._stores)
                if (status := snapshot.get("status") or {}).get("phase") == SnapshotPhase.COMPLETED
                and "completionTime" in status
            ]
            newest_time = max((time for time in completed if time <= self._now()), default=created)
            newest.add_metric([control_plane.name], newest_time.timestamp())
            due.add_metric([control_plane.name], last.timestamp())
        yield from (newest, due)

    def _any(self) -> bool:
        """Return whether any class has a schedule.

        Without a schedule, the read of all control planes, which blocks the event loop, is skipped.
        """
        return any(
            (control_plane_class.get("spec") or {}).get("snapshots") for control_plane_class in self._stores.classes
        )
