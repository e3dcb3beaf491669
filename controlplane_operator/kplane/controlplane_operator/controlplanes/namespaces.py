"""The namespace that a control plane owns in the management cluster: made by us, or not touched at all.

That of a control plane which kplane runs holds its keys, so it has no ownerReference: garbage collection would take it
with `kubectl delete --cascade=foreground` before anything is decided here. It says whose it is in annotations instead,
and stays as their record where the data are retained.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from kplane.api import ControlPlane
from kplane.api.names import CONTROL_PLANE_LABEL, UID_ANNOTATION, label_value, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.record import (
    POD_SECURITY,
    RetainedDataRecord,
    check_adoption,
    is_managed,
    owned_metadata,
    retained_metadata,
)
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import NAMESPACES, AlreadyExists, NotFound

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
    """Makes the namespaces of control planes, hands them on with the data that they stand for, and removes them."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    async def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataRetained) where the namespace is known to keep data that the control plane may not
        have.

        For before anything is written down about a control plane; `ensure` decides.
        """
        known = self._context.stores.namespaces.get(("", management_namespace(control_plane.name)))
        record = _record(known, control_plane) if known is not None and not _terminating(known) else None
        if known is not None and record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=known, record=record)

    async def ensure(self, control_plane: ControlPlane, *, shut_out: Callable[[str], Awaitable[None]]) -> None:
        """Have the namespace exist and be the control plane's.

        Before it takes the data of an earlier one over, `shut_out` is called with the uid of that one.

        Raises ConditionError: NamespaceConflict where somebody else made one of that name, DataRetained where it keeps
        data that the control plane may not have, Provisioning where the one of an earlier one is still on its way out.
        """
        name = management_namespace(control_plane.name)
        found = self._context.stores.namespaces.get(("", name)) or await self._create(control_plane, name)
        if _lost_label(found, control_plane):
            found = await self._patch(found, {"labels": {CONTROL_PLANE_LABEL: label_value(control_plane.name)}})
        record = _record(found, control_plane)
        if record is None and not _owned(found, control_plane):
            raise _foreign(control_plane)
        if _terminating(found):
            raise ConditionError(Reason.PROVISIONING, f"namespace {name} is being deleted; waiting until it is gone")
        if record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=found, record=record)
            # While it is still written down who that is.
            await shut_out(record.uid)
            await self._patch(found, owned_metadata(control_plane))
            self._context.events.record(
                control_plane, reason="DataAdopted", message=f"took over the data that namespace {name} keeps"
            )
        elif not POD_SECURITY.items() <= (found["metadata"].get("labels") or {}).items():
            await self._patch(found, {"labels": POD_SECURITY})

    async def is_foreign(self, control_plane: ControlPlane) -> bool:
        """Tell whether there is a namespace that is not known as the control plane's, so that nothing in it is.

        It may be somebody else's, or the record of another control plane.
        """
        found = await self._find(control_plane)
        return found is not None and not _owned(found, control_plane)

    async def retain(self, control_plane: ControlPlane) -> bool:
        """Leave the namespace as the record of the control plane's data; False where there is none to leave."""
        found = await self._find(control_plane)
        record = _record(found, control_plane) if found is not None and not _terminating(found) else None
        if found is None or record is None or not record.is_of(control_plane):
            return False
        await self._patch(found, retained_metadata(record))
        return True

    async def remove(self, control_plane: ControlPlane) -> None:
        """Delete the namespace, unless it was never ours. Raises ConditionError (Deleting) until it is gone."""
        found = await self._find(control_plane)
        if found is None or not _owned(found, control_plane):
            return
        name = found["metadata"]["name"]
        if not _terminating(found):
            try:
                await self._context.client.delete(NAMESPACES, name, uid=found["metadata"]["uid"])
            except NotFound:
                return
        raise ConditionError(Reason.DELETING, f"waiting until namespace {name} is gone")

    async def _check_adoption(
        self, control_plane: ControlPlane, *, namespace: Object, record: RetainedDataRecord
    ) -> None:
        if record.adoption_token is None:
            # Its control plane went without us, by a finalizer that somebody removed: nobody could ask for its data.
            await self._patch(namespace, retained_metadata(record))
        check_adoption(control_plane, record=record)

    async def _find(self, control_plane: ControlPlane) -> Object | None:
        try:
            return await self._context.client.get(NAMESPACES, management_namespace(control_plane.name))
        except NotFound:
            return None

    async def _create(self, control_plane: ControlPlane, name: str) -> Object:
        labels = {CONTROL_PLANE_LABEL: label_value(control_plane.name), **POD_SECURITY}
        metadata: dict[str, Any] = {"name": name, "labels": labels}
        if is_managed(control_plane):
            recorded = owned_metadata(control_plane)["annotations"]
            metadata["annotations"] = {key: value for key, value in recorded.items() if value is not None}
        else:
            metadata["ownerReferences"] = [owner_of(control_plane)]
        try:
            made = await self._context.client.create(NAMESPACES, {"metadata": metadata})
        except AlreadyExists:
            made = await self._context.client.get(NAMESPACES, name)
        if CONTROL_PLANE_LABEL in (made["metadata"].get("labels") or {}):
            self._context.stores.namespaces.apply(made)
        return made

    async def _patch(self, namespace: Object, metadata: dict[str, Any]) -> Object:
        """Change what the namespace records; raises Conflict where it is no longer as it was read."""
        body = {"metadata": {**metadata, "resourceVersion": namespace["metadata"]["resourceVersion"]}}
        patched = await self._context.client.patch(NAMESPACES, namespace["metadata"]["name"], body)
        self._context.stores.namespaces.apply(patched)
        return patched


def _record(namespace: Object, control_plane: ControlPlane) -> RetainedDataRecord | None:
    """Return what the namespace records, where that is of the control plane or an earlier one of its name."""
    record = RetainedDataRecord.of(namespace)
    return record if record is not None and record.name == label_value(control_plane.name) else None


def _owned(namespace: Object, control_plane: ControlPlane) -> bool:
    metadata = namespace["metadata"]
    record = _record(namespace, control_plane)
    if record is not None:
        return record.is_of(control_plane)
    labelled = (metadata.get("labels") or {}).get(CONTROL_PLANE_LABEL) == label_value(control_plane.name)
    owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or ()]
    return labelled and control_plane.metadata.uid in owners


def _lost_label(namespace: Object, control_plane: ControlPlane) -> bool:
    """Tell whether the namespace is the control plane's by all but the label, which somebody took off."""
    metadata = namespace["metadata"]
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or ()}
    owners.add((metadata.get("annotations") or {}).get(UID_ANNOTATION))
    return CONTROL_PLANE_LABEL not in (metadata.get("labels") or {}) and control_plane.metadata.uid in owners


def _foreign(control_plane: ControlPlane) -> ConditionError:
    name = management_namespace(control_plane.name)
    said = f"namespace {name} exists and does not belong to this control plane, so nothing is put into it"
    if control_plane.status.endpoint is None:
        what = "delete the namespace, or give the control plane another name"
    else:
        # To delete it would be to delete the keys of a control plane that runs.
        label = f"{CONTROL_PLANE_LABEL}={label_value(control_plane.name)}"
        what = f"restore its label {label} and annotation {UID_ANNOTATION}={control_plane.metadata.uid}, which it had"
    return ConditionError(Reason.NAMESPACE_CONFLICT, f"{said}; {what}")


def _terminating(namespace: Object) -> bool:
    return "deletionTimestamp" in namespace["metadata"] or namespace.get("status", {}).get("phase", _ACTIVE) != _ACTIVE
