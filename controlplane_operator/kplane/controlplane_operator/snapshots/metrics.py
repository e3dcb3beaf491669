"""Tells Prometheus how old the newest snapshot of each control plane with a schedule is."""

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
    """Reads the caches whenever asked, so that a control plane that is gone leaves no series behind."""

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
                for each in scheduled_of(control_plane, stores=self._stores)
                if (status := each.get("status") or {}).get("phase") == SnapshotPhase.COMPLETED
                and "completionTime" in status
            ]
            good = max((time for time in completed if time <= self._now()), default=created)
            newest.add_metric([control_plane.name], good.timestamp())
            due.add_metric([control_plane.name], last.timestamp())
        yield from (newest, due)

    def _any(self) -> bool:
        """Whether any class has a schedule: to read all control planes takes time in which nothing else happens."""
        return any((each.get("spec") or {}).get("snapshots") for each in self._stores.classes)
