"""The management namespace of a control plane. The operator changes only namespaces that it created.

The namespace holds the keys of a managed control plane, so it has no ownerReference. Otherwise `kubectl delete
--cascade=foreground` would have it garbage-collected before the operator acts. Annotations name its owner instead. The
namespace stays as the record of retained data.
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
    """Callback that prepares the data of an earlier control plane, with uid `former`, for their new owner."""

    async def __call__(self, control_plane: ControlPlane, *, former: str) -> None: ...


class ManagementNamespaces:
    """Creates the namespaces of control planes, transfers them with retained data, and removes them.

    A namespace that a user deleted is recreated with the same keys. The operator saves the keys before the namespace
    goes.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        remade: Sequence[Callable[[str], None]] = (),
        opened: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`remade` are called with the name of a recreated namespace, so that caches of its contents are discarded.

        `opened` gives the operator access to the Secrets of a namespace.
        """
        self._context = context
        self._remade = remade
        self._opened = opened
        self._keys = TenantKeys(context)
        self._saved = SavedKeys(context)

    async def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataRetained) if the namespace keeps data that the control plane may not take over.

        This check reads the cache, before anything about the control plane is recorded. `ensure` decides.
        """
        namespace = self._context.stores.namespaces.get(("", management_namespace(control_plane.name)))
        record = record_of(namespace, control_plane) if namespace is not None and not _terminating(namespace) else None
        if namespace is not None and record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=namespace, record=record)

    async def ensure(
        self,
        control_plane: ControlPlane,
        *,
        take_over: TakeOver,
        volume: Callable[[ControlPlane], Awaitable[str | None]],
    ) -> str:
        """Ensure that the namespace exists and belongs to the control plane; returns its uid, for the status.

        `take_over` is called with the uid of the earlier control plane if the control plane takes over its data.
        `volume` names the object in the namespace that holds the control plane's data.

        Raises ConditionError with one of these reasons:
        - NamespaceConflict: another user created the namespace.
        - DataRetained: the namespace keeps data that the control plane may not take over.
        - NamespaceDeleted: a user deleted the namespace.
        - Provisioning: the namespace of an earlier control plane is terminating.
        - SecretsNotReadable: the operator cannot read the Secrets of the namespace yet.
        """
        name = management_namespace(control_plane.name)
        namespace = self._context.stores.namespaces.get(("", name)) or await self._create(control_plane, name)
        if self._is_another(namespace, control_plane):
            raise _replaced(control_plane)
        if _lost_label(namespace, control_plane):
            labels = {CONTROL_PLANE_LABEL: label_value(control_plane.name), **POD_SECURITY}
            namespace = await self._patch(namespace, {"labels": labels})
        record = record_of(namespace, control_plane)
        if record is None and not is_owned(namespace, control_plane):
            raise _foreign(control_plane)
        if _terminating(namespace):
            if record is not None and record.is_of(control_plane):
                await self.rescue(control_plane, namespace=namespace, volume=volume)
            raise _leaving(namespace, with_keys=record is not None)
        if self._opened is not None:
            await self._opened(name)
        if record is not None and not record.is_of(control_plane):
            await self._check_adoption(control_plane, namespace=namespace, record=record)
            # The take-over comes before the patch, because the patch replaces the former uid.
            await take_over(control_plane, former=record.uid)
            await self._patch(namespace, owned_metadata(control_plane))
            self._context.events.record(
                control_plane, reason="DataAdopted", message=f"took over the data that namespace {name} keeps"
            )
        elif record is not None and is_managed(control_plane) and record.home != control_plane.home:
            await self._patch(namespace, owned_metadata(control_plane))
        elif not POD_SECURITY.items() <= (namespace["metadata"].get("labels") or {}).items():
            await self._patch(namespace, {"labels": POD_SECURITY})
        uid: str = namespace["metadata"]["uid"]
        return uid

    async def settle(self, control_plane: ControlPlane) -> None:
        """Discard the token of a recreated namespace, since the status has its uid now."""
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
        """Save the keys from a namespace that a user deleted, then raise ConditionError (NamespaceDeleted) in any case.

        The keys are released only if no volume would go with the namespace. A person has to secure such a volume first.
        """
        name = namespace["metadata"]["name"]
        volume_claim = await volume(control_plane)
        await self._keys.save(control_plane, release=volume_claim is None)
        state = f"a user deleted namespace {name}; the operator saved the keys of the control plane"
        if volume_claim is None:
            remedy = "when the namespace is gone, the operator makes it anew and puts the keys back"
        else:
            remedy = (
                f"{volume_claim} holds the data and keeps the namespace: secure its volume, remove finalizer"
                f" {PROTECTION_FINALIZER} from the claim, and the operator makes the namespace anew;"
                " docs/troubleshoot/lost-namespace.md has the commands"
            )
        # The message describes the deletion, because a finalizer of another program may hold the namespace for long.
        raise ConditionError(Reason.NAMESPACE_DELETED, f"{state}; {remedy}. Now {describe_leaving(namespace)}")

    async def recover(
        self,
        control_plane: ControlPlane,
        *,
        take_over: TakeOver,
        volume: Callable[[ControlPlane], Awaitable[str | None]],
    ) -> str | None:
        """Recreate a namespace that a user deleted, before a removal that retains the data.

        Returns the uid of the namespace, or None if there is none. Raises ConditionError as `ensure` does.
        """
        namespace = await self._find(control_plane)
        saved = self._saved.find(control_plane)
        if (namespace is None and saved is None) or not is_managed(control_plane):
            return None
        if namespace is not None and not _terminating(namespace):
            uid: str = namespace["metadata"]["uid"]
            return uid
        return await self.ensure(control_plane, take_over=take_over, volume=volume)

    async def check_kept(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (Deleting) if a namespace of another origin replaces that of a control plane with data.

        The data cannot be removed or recorded then, and removing the control plane alone would leave them behind.
        """
        namespace = await self._find(control_plane)
        if namespace is not None and is_managed(control_plane) and self._is_another(namespace, control_plane):
            raise ConditionError(
                Reason.DELETING, f"{_REPLACED.format(namespace['metadata']['name'])}, and the removal continues"
            )

    async def is_foreign(self, control_plane: ControlPlane) -> bool:
        """Return whether the namespace exists and does not belong to the control plane.

        It may belong to another user, or be the record of another control plane.
        """
        namespace = await self._find(control_plane)
        return namespace is not None and (
            self._is_another(namespace, control_plane) or not is_owned(namespace, control_plane)
        )

    async def find_owned(self, control_plane: ControlPlane) -> Object | None:
        """Return the namespace if it belongs to the control plane; None otherwise."""
        namespace = await self._find(control_plane)
        return namespace if namespace is not None and is_owned(namespace, control_plane) else None

    async def retain(self, control_plane: ControlPlane) -> bool:
        """Keep the namespace as the record of the control plane's data. Returns False if there is no such namespace."""
        namespace = await self._find(control_plane)
        record = record_of(namespace, control_plane) if namespace is not None and not _terminating(namespace) else None
        if namespace is None or record is None or not record.is_of(control_plane):
            return False
        # A migration in the previous pass may not have recorded the new home in the namespace.
        await self._patch(namespace, retained_metadata(record, home=control_plane))
        return True

    async def remove(self, control_plane: ControlPlane) -> None:
        """Delete the namespace if it belongs to the control plane.

        Raises ConditionError (Deleting) until it is gone.
        """
        namespace = await self._find(control_plane)
        if namespace is None or not is_owned(namespace, control_plane):
            await self._saved.forget(control_plane)
            return
        name = namespace["metadata"]["name"]
        if is_managed(control_plane):
            await self._keys.unprotect(control_plane)
        if not _terminating(namespace):
            try:
                await self._context.client.delete(NAMESPACES, name, uid=namespace["metadata"]["uid"])
            except NotFound:
                await self._saved.forget(control_plane)
                return
            raise ConditionError(Reason.DELETING, f"waiting until namespace {name} is gone")
        raise ConditionError(Reason.DELETING, f"waiting until the namespace is gone: {describe_leaving(namespace)}")

    async def _check_adoption(
        self, control_plane: ControlPlane, *, namespace: Object, record: RetainedDataRecord
    ) -> None:
        if record.adoption_token is None:
            # A user removed the finalizer of the former control plane, so the record has no adoption token yet.
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
            # The token is saved before the namespace is created, so that a restarted operator recognizes the namespace.
            token = token_of(await self._saved.save(control_plane))
            metadata["annotations"] = {**metadata.get("annotations", {}), NAMESPACE_TOKEN_ANNOTATION: token}
            if fingerprints := control_plane.status.key_fingerprints:
                # Fingerprints come before the keys are restored, so that no other keys are taken for them.
                metadata["annotations"][KEY_FINGERPRINTS_ANNOTATION] = KeyRecord((fingerprints,)).annotation()
            for forget in self._remade:
                forget(name)
        try:
            return await self._context.client.create(NAMESPACES, {"metadata": metadata})
        except AlreadyExists:
            namespace = await self._context.client.get(NAMESPACES, name)
        if CONTROL_PLANE_LABEL in (namespace["metadata"].get("labels") or {}):
            self._context.stores.namespaces.apply(namespace)
        return namespace

    async def _patch(self, namespace: Object, metadata: dict[str, Any]) -> Object:
        """Patch the metadata of the namespace. Raises Conflict if the namespace changed since it was read."""
        body = {"metadata": {**metadata, "resourceVersion": namespace["metadata"]["resourceVersion"]}}
        return await self._context.client.patch(NAMESPACES, namespace["metadata"]["name"], body)

    def _is_another(self, namespace: Object, control_plane: ControlPlane) -> bool:
        """Return whether the control plane had a namespace before, and another user created this namespace."""
        if control_plane.status.namespace_uid in (None, namespace["metadata"]["uid"]):
            return False
        saved, namespace_token = self._saved.find(control_plane), token_of(namespace)
        token = token_of(saved) if saved is not None else None
        return (
            token is None
            or namespace_token is None
            or not hmac.compare_digest(namespace_token.encode(), token.encode())
        )


def _lost_label(namespace: Object, control_plane: ControlPlane) -> bool:
    """Return whether the namespace belongs to the control plane, but a user removed its label."""
    metadata = namespace["metadata"]
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences") or ()}
    owners.add((metadata.get("annotations") or {}).get(UID_ANNOTATION))
    return CONTROL_PLANE_LABEL not in (metadata.get("labels") or {}) and control_plane.metadata.uid in owners


def _foreign(control_plane: ControlPlane) -> ConditionError:
    name = management_namespace(control_plane.name)
    state = f"namespace {name} exists and does not belong to this control plane, so nothing is put into it"
    if control_plane.status.endpoint is None:
        remedy = "delete the namespace, or give the control plane another name"
    else:
        # Deleting this namespace would delete the keys of a running control plane.
        label = f"{CONTROL_PLANE_LABEL}={label_value(control_plane.name)}"
        remedy = f"restore its label {label} and annotation {UID_ANNOTATION}={control_plane.metadata.uid}, which it had"
    return ConditionError(Reason.NAMESPACE_CONFLICT, f"{state}; {remedy}")


_REPLACED: Final = (
    "a user deleted namespace {} and made another one of that name, so the operator puts nothing into it. If it was"
    " restored from a backup, first copy Secret control-plane-authorities. Then delete that namespace"
)


def _replaced(control_plane: ControlPlane) -> ConditionError:
    state = _REPLACED.format(management_namespace(control_plane.name))
    return ConditionError(Reason.NAMESPACE_CONFLICT, f"{state}, and the operator makes its own one anew")


def _leaving(namespace: Object, *, with_keys: bool) -> ConditionError:
    state = f"waiting until a namespace of that name is gone: {describe_leaving(namespace)}"
    remedy = (
        f"; to give up what it keeps of an earlier control plane, remove finalizer {PROTECTION_FINALIZER} from that"
    )
    return ConditionError(Reason.PROVISIONING, state + remedy if with_keys else state)


def _terminating(namespace: Object) -> bool:
    return "deletionTimestamp" in namespace["metadata"] or namespace.get("status", {}).get("phase", _ACTIVE) != _ACTIVE
