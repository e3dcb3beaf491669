"""Who works on a control plane: the registrations that are ready for it, and the instances that run for it."""

from __future__ import annotations

from kplane.api import ControlPlane, ControlPlaneClass
from kplane.controlplane_operator.controlplanes.partial import PartialRegistration
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.event_routing import Stores

__all__ = ["DeletedRegistrations", "instances_of", "registrations_of"]


def registrations_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Name the registrations whose status still lets services run for the control plane, whatever their spec says."""
    return [found.name for found in _of(control_plane, stores) if found.status.ready and _serves(found, control_plane)]


def instances_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Name the registrations whose instance works for the control plane, or may: its end is not confirmed yet.

    mcm announces an instance before it starts, and takes that back when nothing is left of it. So after a registration
    was seen to be not ready and without an instance, in one look at it, none comes any more.
    """
    return [
        found.name
        for found in _of(control_plane, stores)
        if found.status.instance is not None and found.status.instance.control_plane_uid == control_plane.metadata.uid
    ]


class DeletedRegistrations:
    """Default registrations that go before their control plane, and the instances that they leave behind.

    With `kubectl delete controlplane --cascade=foreground` garbage collection deletes them at once. Then nothing is
    there any more in which the end of an instance could be confirmed. As long as the class wants such a registration it
    is made again, so one that is missing went with the deletion: no record of it is needed to know that.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._left: dict[str, str | None] = {}
        stores.registrations.listen(self._changed)

    def unconfirmed(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> list[str]:
        """Name the default registration of a deleted control plane where it went and its instance may run still.

        So it is too where it went while nobody looked.
        """
        name = control_plane.name
        wanted = chosen is not None and chosen.spec.default_services and control_plane.status.endpoint is not None
        if not wanted or self._stores.registrations.get(("", name)) is not None:
            return []
        return [name] if self._left.get(name, control_plane.metadata.uid) == control_plane.metadata.uid else []

    def forget(self, name: str) -> None:
        """The control plane of this name is gone."""
        self._left.pop(name, None)

    def _changed(self, change: Change) -> None:
        name = change.key[1]
        if change.new is not None:
            self._left.pop(name, None)
        elif change.old is not None and self._stores.control_planes.get(("", name)) is not None:
            self._left[name] = _instance_uid(change.old)


def _instance_uid(registration: Object) -> str | None:
    uid: str | None = ((registration.get("status") or {}).get("instance") or {}).get("controlPlaneUID")
    return uid


def _of(control_plane: ControlPlane, stores: Stores) -> list[PartialRegistration]:
    found = stores.registrations.by("served", control_plane.metadata.uid or "")
    return [PartialRegistration.of(obj) for obj in found]


def _serves(registration: PartialRegistration, control_plane: ControlPlane) -> bool:
    return registration.status.control_plane_uid == control_plane.metadata.uid
