"""Watches of the controller of endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.changes import Changes, Names, StoreChanges, matters
from kplane.controlplane_operator.watch.predicates import is_hibernated
from kplane.controlplane_operator.watch.stores import Stores, field_of
from kplane.provider import Request, predicates
from kplane.provider.controllers.builder import ControllerBuilder

__all__ = ["watch_endpoints"]


def watch_endpoints(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile an endpoint after each change of it, of its control planes and of its credentials."""
    names = _Names(stores)
    builder.for_(CONTROL_PLANE_ENDPOINTS, predicates(changes.passing(matters)))
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    for store in stores.secret_stores():
        builder.watches_raw(StoreChanges(store, names.of_secret))
    return builder


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the endpoints to reconcile after a change."""

    stores: Stores

    def of_control_plane(self, change: Change) -> Names:
        # An endpoint is probed from its control planes, while they are awake.
        return [name for name, _ in _reached(change.old) ^ _reached(change.new)]

    def of_secret(self, change: Change) -> Names:
        endpoints = self.stores.endpoints.by("credentials", "/".join(change.key))
        return [obj["metadata"]["name"] for obj in endpoints]


def _reached(control_plane: Object | None) -> set[tuple[str, bool]]:
    """Return the endpoint of a control plane, and whether an API server answers there.

    It is the endpoint that the spec names, or the control plane's own endpoint once published.
    """
    if control_plane is None:
        return set()
    referenced = field_of("spec", "endpointRef", "name")(control_plane)
    own = [control_plane["metadata"]["name"]] if field_of("status", "endpoint")(control_plane) else []
    return {(name, not is_hibernated(control_plane)) for name in referenced or own}
