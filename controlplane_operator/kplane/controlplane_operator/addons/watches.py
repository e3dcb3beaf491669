"""Watches of the controller of add-ons, which reconciles control planes."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.api.conditions import READY
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.changes import Changes, Names, StoreChanges, matters, only_status
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.predicates import has_addons
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Request
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import ControllerBuilder

__all__ = ["watch_addons"]


def watch_addons(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile the add-ons of a control plane after each change of it, its class, its Secrets and the manifests."""
    names = _Names(stores)
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.of_class))
    builder.watches(CONFIG_MAPS, changes.mapped(names.of_bundle))
    for store in stores.secret_stores():
        builder.watches_raw(StoreChanges(store, names.of_secret))
    return builder


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the control planes whose add-ons to reconcile after a change."""

    stores: Stores

    def of_control_plane(self, change: Change) -> Names:
        if matters(change) or _is_ready(change.old) != _is_ready(change.new):
            yield from self._with_addons(change.new, change.key[1])

    def of_class(self, change: Change) -> Names:
        return self._of_class(change.key[1]) if not only_status(change) else ()

    def of_bundle(self, change: Change) -> Names:
        for obj in self.stores.classes.by("addon", change.key[1]):
            yield from self._of_class(obj["metadata"]["name"])

    def of_secret(self, change: Change) -> Names:
        for obj in self.stores.control_planes.by("namespace", change.key[0]):
            yield from self._with_addons(obj, obj["metadata"]["name"])

    def _of_class(self, name: str) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.stores.control_planes.by("class", name)]

    def _with_addons(self, control_plane: Object | None, name: str) -> list[str]:
        """Return the control plane, unless it has no add-ons to install, and no state to discard."""
        if control_plane is None or has_addons(control_plane, classes=self.stores.classes):
            return [name]
        return []


def _is_ready(obj: Object | None) -> bool:
    return stored_condition(obj, READY).get("status") == "True"
