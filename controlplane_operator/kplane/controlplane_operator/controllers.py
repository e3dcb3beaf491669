"""Controllers of the operator: which changes lead to which reconciler."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from kplane.controlplane_operator.addons.watches import watch_addons
from kplane.controlplane_operator.classes.watches import watch_classes
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.watches import watch_control_planes
from kplane.controlplane_operator.endpoints.watches import watch_endpoints
from kplane.controlplane_operator.failures import Failures, Reconcile
from kplane.controlplane_operator.reconcilers import Reconcilers
from kplane.controlplane_operator.registrations.watches import (
    watch_dedicated_mcms,
    watch_registrations,
)
from kplane.controlplane_operator.snapshots.watches import watch_schedules, watch_snapshots
from kplane.controlplane_operator.watch.cache import Key
from kplane.controlplane_operator.watch.changes import Changes
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Trigger
from kplane.provider import (
    Manager,
    Request,
    Result,
    controller,
    single_cluster,
)
from kplane.provider.controllers.builder import ControllerBuilder
from kplane.provider.controllers.rate_limiter import ItemBackoff

__all__ = ["add_controllers"]


_BACKOFF_SECONDS: Final = 60.0
_WAITING_FOR_EACH_WORKER: Final = 8
"""Number of reconciles per worker that may wait for a tenant's answer without a worker.

A waiting reconcile costs about ten kilobytes of memory, and no CPU time.
"""


def add_controllers(manager: Manager, reconcilers: Reconcilers, *, context: OperatorContext, workers: int) -> None:
    """Add a controller for each reconciler, with up to `workers` reconciles at once."""
    add = _Controllers(manager, context.stores, waiting=workers * _WAITING_FOR_EACH_WORKER).add
    triggers = context.triggers
    add("controlplane", watch_control_planes, reconcilers.control_planes, triggers.control_planes)
    add("controlplaneclass", watch_classes, reconcilers.classes)
    add("controlplaneendpoint", watch_endpoints, reconcilers.endpoints)
    add("controlplaneregistration", watch_registrations, reconcilers.registrations, triggers.registrations)
    add("controlplanesnapshot", watch_snapshots, reconcilers.snapshots, triggers.snapshots)
    add("controlplaneaddons", watch_addons, reconcilers.addons)
    add("credentialprobe", None, reconcilers.probes, triggers.probes)
    add("snapshotschedule", watch_schedules, reconcilers.schedules)
    add("dedicatedmcm", watch_dedicated_mcms, reconcilers.dedicated_mcms, triggers.mcms)


class _Reconciler(Protocol):
    async def reconcile(self, key: Key) -> Result | None: ...


@runtime_checkable
class _Reporting(_Reconciler, Protocol):
    @property
    def failures(self) -> Failures: ...


class _Watch(Protocol):
    def __call__(
        self, builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
    ) -> ControllerBuilder[Request]: ...


class _Controllers:
    """Adds the operator's controllers to its manager."""

    def __init__(self, manager: Manager, stores: Stores, *, waiting: int) -> None:
        self._manager = manager
        self._stores = stores
        self._waiting = waiting
        self._changes = Changes()

    def add(self, name: str, watch: _Watch | None, reconciler: _Reconciler, trigger: Trigger | None = None) -> None:
        """Add a controller that reconciles after the changes of `watch`, and on request of the trigger."""
        builder = controller(self._manager).named(name)
        if watch is not None:
            watch(builder, stores=self._stores, changes=self._changes)
        if trigger is not None:
            builder.watches_raw(trigger.channel)
        reconcile: Reconcile = reconciler.reconcile
        if isinstance(reconciler, _Reporting):
            failures = reconciler.failures
            reconcile = failures.guarded(reconcile)
            builder.with_options(on_failure=lambda request, error: failures.failed(request.key, error))
        builder.with_options(
            waiting=self._waiting,
            grace_seconds=0.0,
            rate_limiter=ItemBackoff(maximum_seconds=_BACKOFF_SECONDS),
            # API servers and etcds on this machine are restarted, even if the management cluster cannot be reached.
            while_unreachable=True,
        ).build(single_cluster(reconcile))
