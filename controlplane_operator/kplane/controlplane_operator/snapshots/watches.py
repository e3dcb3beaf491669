"""Watches of the controllers of snapshots, and of the schedules by which control planes get snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Change
from kplane.controlplane_operator.watch.changes import Changes, Names, matters, only_status
from kplane.controlplane_operator.watch.predicates import concerns_schedule
from kplane.controlplane_operator.watch.stores import Stores, field_of
from kplane.provider import Request
from kplane.provider.controllers.builder import ControllerBuilder

__all__ = ["watch_schedules", "watch_snapshots"]


def watch_snapshots(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile a snapshot after each change of it and of its control plane."""
    builder.for_(CONTROL_PLANE_SNAPSHOTS)
    builder.watches(CONTROL_PLANES, changes.mapped(_Snapshots(stores).of_control_plane))
    return builder


def watch_schedules(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile the schedule of a control plane after each change of it, of its class and of its snapshots."""
    names = _Schedules(stores)
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.of_class))
    builder.watches(CONTROL_PLANE_SNAPSHOTS, changes.mapped(names.of_snapshot))
    return builder


@dataclass(frozen=True, slots=True)
class _Snapshots:
    """Names of the snapshots to reconcile after a change."""

    stores: Stores

    def of_control_plane(self, change: Change) -> Names:
        # Snapshots may wait for their control plane.
        if matters(change):
            yield from (obj["metadata"]["name"] for obj in self.stores.snapshots.by("control plane", change.key[1]))


@dataclass(frozen=True, slots=True)
class _Schedules:
    """Names of the control planes whose schedules to reconcile after a change."""

    stores: Stores

    def of_control_plane(self, change: Change) -> Names:
        return [change.key[1]] if matters(change) and concerns_schedule(change, classes=self.stores.classes) else ()

    def of_class(self, change: Change) -> Names:
        if not only_status(change):
            yield from (obj["metadata"]["name"] for obj in self.stores.control_planes.by("class", change.key[1]))

    def of_snapshot(self, change: Change) -> Names:
        return field_of("spec", "controlPlaneRef", "name")(change.new or change.old or {})
