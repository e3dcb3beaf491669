"""Watches of the controller of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Change
from kplane.controlplane_operator.watch.changes import Changes, Names, only_status
from kplane.controlplane_operator.watch.class_usage import concerned_classes
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Request
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import ControllerBuilder
from kplane.provider.controllers.handlers import Delayed

__all__ = ["watch_classes"]

_MERGE_SECONDS: Final = 1.0
"""Delay before a class is reconciled, so that changes of many control planes lead to a single status write."""


def watch_classes(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile a class after each change of it, of its control planes and of its add-ons."""
    names = _Names(stores)
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.itself))
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    builder.watches(CONFIG_MAPS, changes.mapped(names.of_bundle))
    return builder


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the classes to reconcile after a change."""

    stores: Stores

    def itself(self, change: Change) -> Names:
        # A change of the status alone is usually the operator's own write.
        return [Delayed(change.key[1], _MERGE_SECONDS) if only_status(change) else change.key[1]]

    def of_control_plane(self, change: Change) -> Names:
        return [Delayed(name, _MERGE_SECONDS) for name in concerned_classes(change)]

    def of_bundle(self, change: Change) -> Names:
        return [obj["metadata"]["name"] for obj in self.stores.classes.by("addon", change.key[1])]
