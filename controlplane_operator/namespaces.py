"""The namespace that a control plane owns in the management cluster: made by us, or not touched at all."""

from __future__ import annotations

from typing import Any, Final

from api import ControlPlane
from api.names import CONTROL_PLANE_LABEL, label_value, management_namespace
from controlplane_operator.cache import Object
from controlplane_operator.kinds import CONTROL_PLANES
from controlplane_operator.management import Management
from controlplane_operator.trouble import Trouble
from provider import NAMESPACES, AlreadyExists, NotFound

__all__ = ["ManagementNamespaces", "owner_of"]

_ACTIVE: Final = "Active"


def owner_of(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the ownerReference by which an object belongs to a control plane, and goes with it at the latest."""
    return {
        "apiVersion": CONTROL_PLANES.api_version,
        "kind": CONTROL_PLANES.kind,
        "name": control_plane.name,
        "uid": control_plane.metadata.uid,
    }


class ManagementNamespaces:
    """Makes and removes the namespaces of control planes."""

    def __init__(self, management: Management) -> None:
        self._management = management

    async def ensure(self, control_plane: ControlPlane) -> None:
        """Have the namespace exist.

        Raises Trouble: NamespaceForeign where somebody else made one of that name, Provisioning where the one of an
        earlier control plane is still on its way out.
        """
        name = management_namespace(control_plane.name)
        found = self._management.stores.namespaces.get(("", name)) or await self._create(control_plane, name)
        if not _owned(found, control_plane):
            raise Trouble(
                "NamespaceForeign",
                f"namespace {name} exists and does not belong to this control plane, so nothing is put into it;"
                " delete the namespace, or give the control plane another name",
            )
        if _terminating(found):
            raise Trouble("Provisioning", f"namespace {name} is being deleted; waiting until it is gone")

    async def remove(self, control_plane: ControlPlane) -> None:
        """Delete the namespace, unless it was never ours. Raises Trouble (Deleting) until it is gone."""
        name = management_namespace(control_plane.name)
        try:
            found = await self._management.client.get(NAMESPACES, name)
            if not _owned(found, control_plane):
                return
            if not _terminating(found):
                await self._management.client.delete(NAMESPACES, name, uid=found["metadata"]["uid"])
        except NotFound:
            return
        raise Trouble("Deleting", f"waiting until namespace {name} is gone")

    async def _create(self, control_plane: ControlPlane, name: str) -> Object:
        body = {
            "metadata": {
                "name": name,
                "labels": {CONTROL_PLANE_LABEL: label_value(control_plane.name)},
                "ownerReferences": [owner_of(control_plane)],
            }
        }
        try:
            made = await self._management.client.create(NAMESPACES, body)
        except AlreadyExists:
            made = await self._management.client.get(NAMESPACES, name)
        if CONTROL_PLANE_LABEL in (made["metadata"].get("labels") or {}):
            self._management.stores.namespaces.apply(made)
        return made


def _owned(namespace: Object, control_plane: ControlPlane) -> bool:
    metadata = namespace["metadata"]
    labelled = (metadata.get("labels") or {}).get(CONTROL_PLANE_LABEL) == label_value(control_plane.name)
    owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or ()]
    return labelled and control_plane.metadata.uid in owners


def _terminating(namespace: Object) -> bool:
    return "deletionTimestamp" in namespace["metadata"] or namespace.get("status", {}).get("phase", _ACTIVE) != _ACTIVE
