"""The namespace that a control plane owns in the management cluster. The operator touches only namespaces that it made.

The namespace holds the keys of a control plane that kplane runs, so it has no ownerReference. Otherwise `kubectl delete
--cascade=foreground` would have it garbage-collected before the operator acts. Annotations name its owner instead. It
stays as the record of retained data.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

from kplane.api import ControlPlane
from kplane.api.names import (
    CLAIMED_ADDRESS_ANNOTATION,
    CONTROL_PLANE_LABEL,
    KEY_FINGERPRINTS_ANNOTATION,
    NAMESPACE_TOKEN_ANNOTATION,
    PROTECTION_FINALIZER,
    UID_ANNOTATION,
    label_value,
    management_namespace,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.beginning import is_owned, record_of
from kplane.controlplane_operator.controlplanes.retained_data import (
    POD_SECURITY,
    RetainedDataRecord,
    check_adoption,
    is_managed,
    owned_metadata,
    retained_metadata,
)
from kplane.controlplane_operator.credentials.key_records import KeyRecord
from kplane.controlplane_operator.credentials.saved import SavedKeys, token_of
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.kinds import owner_reference
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.leaving import describe_leaving
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.entries import data_of
from kplane.provider import AlreadyExists, NotFound
from kplane.provider.client.resources import NAMESPACES

__all__ = ["ManagementNamespaces"]

_ACTIVE: Final = "Active"


class TakeOver(Protocol):
    """What is done with the data of an earlier control plane, of the uid `former`, that the control plane may have."""

    async def __call__(self, control_plane: ControlPlane, *, former: str) -> None: ...


class ManagementNamespaces:
    """Makes the namespaces of control planes, hands them on with the data that they stand for, and removes them.

    A namespace that a user deleted is made anew, with the same keys. They are saved before the namespace goes.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        remade: Sequence[Callable[[str], None]] = (),
        opened: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`remade` are called with the name of a namespace that was made anew, so that nothing in it is known.

        `opened` lets the operator use the Secrets of a namespace.
        """
        self._context = context
        self._remade = remade
        self._opened = opened
        self._keys = TenantKeys(context)
        self._saved = SavedKeys(context)

    async def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataRetained) where the namespace is known to keep data that the control plane may not
        have.

        For before anything is written down about a control plane; `ensure` decides.
        """
        known = self._context.stores.namespaces.get(("", management_namespace(control_plane.name)))
        record = record_of(known, control_plane) if known is not None and not _terminating(known) else None
        if known is not None and record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=known, record=record)

    async def ensure(
        self,
        control_plane: ControlPlane,
        *,
        take_over: TakeOver,
        volume: Callable[[ControlPlane], Awaitable[str | None]],
    ) -> str:
        """Have the namespace exist and be the control plane's; returns its uid, which is to be in the status.

        `take_over` is called with the uid of an earlier one whose data the control plane takes over. `volume` names
        what in the namespace holds the control plane's data.

        Raises ConditionError: NamespaceConflict where somebody else made one of that name, DataRetained where it keeps
        data that the control plane may not have, NamespaceDeleted where a user deleted it, Provisioning where the one
        of an earlier one is still on its way out, SecretsNotReadable until the operator can read the Secrets in it.
        """
        name = management_namespace(control_plane.name)
        found = self._context.stores.namespaces.get(("", name)) or await self._create(control_plane, name)
        if self._is_another(found, control_plane):
            raise _replaced(control_plane)
        if _lost_label(found, control_plane):
            labels = {CONTROL_PLANE_LABEL: label_value(control_plane.name), **POD_SECURITY}
            found = await self._patch(found, {"labels": labels})
        record = record_of(found, control_plane)
        if record is None and not is_owned(found, control_plane):
            raise _foreign(control_plane)
        if _terminating(found):
            if record is not None and record.is_of(control_plane):
                await self.rescue(control_plane, namespace=found, volume=volume)
            raise _leaving(found, with_keys=record is not None)
        if self._opened is not None:
            await self._opened(name)
        if record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=found, record=record)
            # While it is still written down who that is.
            await take_over(control_plane, former=record.uid)
            await self._patch(found, owned_metadata(control_plane))
            self._context.events.record(
                control_plane, reason="DataAdopted", message=f"took over the data that namespace {name} keeps"
            )
        elif record is not None and is_managed(control_plane) and record.home != control_plane.home:
            await self._patch(found, owned_metadata(control_plane))
        elif not POD_SECURITY.items() <= (found["metadata"].get("labels") or {}).items():
            await self._patch(found, {"labels": POD_SECURITY})
        uid: str = found["metadata"]["uid"]
        return uid

    async def settle(self, control_plane: ControlPlane) -> None:
        """Forget the token of a namespace that was made anew, now that its uid is in the status."""
        saved = self._saved.find(control_plane)
        if saved is not None and not data_of(saved):
            await self._saved.forget(control_plane)

    async def rescue(
        self,
        control_plane: ControlPlane,
        *,
        namespace: Object,
        volume: Callable[[ControlPlane], Awaitable[str | None]],
    ) -> NoReturn:
        """Save the keys from a namespace that a user deleted. Raises ConditionError (NamespaceDeleted) in any case.

        The keys go only after data that would go with the namespace, which a person has to secure first.
        """
        name = namespace["metadata"]["name"]
        held = await volume(control_plane)
        await self._keys.save(control_plane, release=held is None)
        said = f"a user deleted namespace {name}; the operator saved the keys of the control plane"
        if held is None:
            what = "when the namespace is gone, the operator makes it anew and puts the keys back"
        else:
            what = (
                f"{held} holds the data and keeps the namespace: secure its volume, remove finalizer"
                f" {PROTECTION_FINALIZER} from the claim, and the operator makes the namespace anew;"
                " docs/troubleshoot/lost-namespace.md has the commands"
            )
        # A finalizer of another program may hold the namespace for longer than the operator's own.
        raise ConditionError(Reason.NAMESPACE_DELETED, f"{said}; {what}. Now {describe_leaving(namespace)}")

    async def recover(
        self,
        control_plane: ControlPlane,
        *,
        take_over: TakeOver,
        volume: Callable[[ControlPlane], Awaitable[str | None]],
    ) -> str | None:
        """Have a namespace that a user deleted back before a removal that retains the data.

        Returns the uid of the namespace, None where there is none. Raises ConditionError as `ensure` does.
        """
        found = await self._find(control_plane)
        saved = self._saved.find(control_plane)
        if (found is None and saved is None) or not is_managed(control_plane):
            return None
        if found is not None and not _terminating(found):
            uid: str = found["metadata"]["uid"]
            return uid
        return await self.ensure(control_plane, take_over=take_over, volume=volume)

    async def check_kept(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (Deleting) if another namespace is where the one of a control plane with data was.

        Its data cannot be removed or recorded then, and to remove the control plane alone would leave them behind.
        """
        found = await self._find(control_plane)
        if found is not None and is_managed(control_plane) and self._is_another(found, control_plane):
            raise ConditionError(
                Reason.DELETING, f"{_REPLACED.format(found['metadata']['name'])}, and the removal continues"
            )

    async def is_foreign(self, control_plane: ControlPlane) -> bool:
        """Tell whether there is a namespace that is not known as the control plane's, so that nothing in it is.

        It may be somebody else's, or the record of another control plane.
        """
        found = await self._find(control_plane)
        return found is not None and (self._is_another(found, control_plane) or not is_owned(found, control_plane))

    async def find_owned(self, control_plane: ControlPlane) -> Object | None:
        """Return the namespace, if it is known as the control plane's."""
        found = await self._find(control_plane)
        return found if found is not None and is_owned(found, control_plane) else None

    async def retain(self, control_plane: ControlPlane) -> bool:
        """Leave the namespace as the record of the control plane's data; False where there is none to leave."""
        found = await self._find(control_plane)
        record = record_of(found, control_plane) if found is not None and not _terminating(found) else None
        if found is None or record is None or not record.is_of(control_plane):
            return False
        # It may have moved in the pass before, which did not come to write that down.
        await self._patch(found, retained_metadata(record, home=control_plane))
        return True

    async def remove(self, control_plane: ControlPlane) -> None:
        """Delete the namespace, unless it was never ours. Raises ConditionError (Deleting) until it is gone."""
        found = await self._find(control_plane)
        if found is None or not is_owned(found, control_plane):
            await self._saved.forget(control_plane)
            return
        name = found["metadata"]["name"]
        if is_managed(control_plane):
            await self._keys.unprotect(control_plane)
        if not _terminating(found):
            try:
                await self._context.client.delete(NAMESPACES, name, uid=found["metadata"]["uid"])
            except NotFound:
                await self._saved.forget(control_plane)
                return
            raise ConditionError(Reason.DELETING, f"waiting until namespace {name} is gone")
        raise ConditionError(Reason.DELETING, f"waiting until the namespace is gone: {describe_leaving(found)}")

    async def _check_adoption(
        self, control_plane: ControlPlane, *, namespace: Object, record: RetainedDataRecord
    ) -> None:
        if record.adoption_token is None:
            # A user removed the finalizer of its control plane, so there is no token to adopt its data with yet.
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
            metadata["ownerReferences"] = [owner_reference(control_plane)]
            if (address := control_plane.status.claimed_address) is not None:
                metadata["annotations"] = {CLAIMED_ADDRESS_ANNOTATION: address}
        if control_plane.status.namespace_uid is not None:
            # Before it is made, so that the operator knows it again, whatever becomes of the operator meanwhile.
            token = token_of(await self._saved.save(control_plane))
            metadata["annotations"] = {**metadata.get("annotations", {}), NAMESPACE_TOKEN_ANNOTATION: token}
            if fingerprints := control_plane.status.key_fingerprints:
                # Before the keys are back, from wherever: others are not taken for them.
                metadata["annotations"][KEY_FINGERPRINTS_ANNOTATION] = KeyRecord((fingerprints,)).annotation()
            for forget in self._remade:
                forget(name)
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

    def _is_another(self, namespace: Object, control_plane: ControlPlane) -> bool:
        """Tell whether the control plane had a namespace before, and this one was made by another user."""
        if control_plane.status.namespace_uid in (None, namespace["metadata"]["uid"]):
            return False
        saved, given = self._saved.find(control_plane), token_of(namespace)
        token = token_of(saved) if saved is not None else None
        return token is None or given is None or not hmac.compare_digest(given.encode(), token.encode())


def _lost_label(namespace: Object, control_plane: ControlPlane) -> bool:
    """Tell whether the namespace is the control plane's by all but the label, which was removed."""
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


_REPLACED: Final = (
    "a user deleted namespace {} and made another one of that name, so the operator puts nothing into it. If it was"
    " restored from a backup, first copy Secret control-plane-authorities. Then delete that namespace"
)


def _replaced(control_plane: ControlPlane) -> ConditionError:
    said = _REPLACED.format(management_namespace(control_plane.name))
    return ConditionError(Reason.NAMESPACE_CONFLICT, f"{said}, and the operator makes its own one anew")


def _leaving(namespace: Object, *, with_keys: bool) -> ConditionError:
    said = f"waiting until a namespace of that name is gone: {describe_leaving(namespace)}"
    held = f"; to give up what it keeps of an earlier control plane, remove finalizer {PROTECTION_FINALIZER} from that"
    return ConditionError(Reason.PROVISIONING, said + held if with_keys else said)


def _terminating(namespace: Object) -> bool:
    return "deletionTimestamp" in namespace["metadata"] or namespace.get("status", {}).get("phase", _ACTIVE) != _ACTIVE
