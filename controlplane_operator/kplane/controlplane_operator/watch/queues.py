"""Work queues of the reconcilers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kplane.controlplane_operator.watch.cache import Key
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff

__all__ = ["Queues"]


def _queue() -> FairQueue[Key]:
    return FairQueue(rate_limiter=ItemBackoff(maximum_seconds=60.0))


@dataclass(frozen=True, slots=True)
class Queues:
    """The work queue of each reconciler."""

    control_planes: FairQueue[Key] = field(default_factory=_queue)
    classes: FairQueue[Key] = field(default_factory=_queue)
    endpoints: FairQueue[Key] = field(default_factory=_queue)
    registrations: FairQueue[Key] = field(default_factory=_queue)
    addons: FairQueue[Key] = field(default_factory=_queue)
    """Keys of control planes whose add-ons to reconcile."""
    mcms: FairQueue[Key] = field(default_factory=_queue)
    """Keys of registrations that may have a dedicated mcm."""
    snapshots: FairQueue[Key] = field(default_factory=_queue)
    schedules: FairQueue[Key] = field(default_factory=_queue)
    """Keys of control planes whose class may request snapshots."""
    probes: FairQueue[Key] = field(default_factory=_queue)
    """Keys of control planes whose published credentials to probe."""

    def by_name(self) -> dict[str, FairQueue[Key]]:
        """Return the queues by the names of their controllers."""
        return {
            "controlplane": self.control_planes,
            "controlplaneclass": self.classes,
            "controlplaneendpoint": self.endpoints,
            "controlplaneregistration": self.registrations,
            "controlplaneaddons": self.addons,
            "dedicatedmcm": self.mcms,
            "controlplanesnapshot": self.snapshots,
            "snapshotschedule": self.schedules,
            "credentialprobe": self.probes,
        }
