"""Claims of key prefixes in the shared etcd: each prefix belongs to a single control plane."""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.api.names import DESTROY_DATA_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import start_errors
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.errors import PrefixNotOwned
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.access_control import AccessControl
from kplane.controlplane_operator.shared_etcd.keyspace import Keyspace, key_prefix
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Owner

__all__ = ["PrefixClaims", "etcd_user", "owner_of", "prefix_of", "whose"]


class PrefixClaims:
    """Claims prefixes for control planes before any key is written below them, and releases them."""

    def __init__(self, shared: SharedEtcd, *, keys: TenantKeys, access: AccessControl) -> None:
        self._shared = shared
        self._keys = keys
        self._access = access

    @property
    def _keyspace(self) -> Keyspace:
        # Read at each use, because credentials may arrive after the start of the operator.
        return self._shared.keyspace

    async def claim(self, control_plane: ControlPlane) -> None:
        """Claim the prefix for the control plane.

        Raises ConditionError (DataNotOwned) if it belongs to another owner.
        """
        user = etcd_user(control_plane.metadata.uid)
        if self._access.is_granted(user):
            return
        published = control_plane.status.endpoint is not None
        with start_errors(published=published):
            try:
                await self._claim(control_plane)
            except PrefixNotOwned as error:
                # The control plane may have had the prefix before the etcd was restored.
                await self._access.revoke(user)
                raise _not_owned(error) from error

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Return whether the control plane has keys below its prefix."""
        prefix = prefix_of(control_plane)
        with start_errors(published=False):
            owner = await self._keyspace.owner(prefix)
            if owner != owner_of(control_plane) and (owner is not None or not await self._is_known(control_plane)):
                return False
            return await self._keyspace.count(prefix) > 0

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Revoke the former user in etcd, whose API server may still run, and record the new owner of the keys.

        Raises ConditionError (DataNotOwned) if the keys belong to a third owner.
        """
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        with start_errors(published=False):
            await self._access.revoke(etcd_user(former))
            present = await self._keyspace.owner(prefix)
            try:
                if present is not None and present.uid != former:
                    await self._keyspace.claim(prefix, owner=owner, known=False)
                else:
                    await self._keyspace.take_over(prefix, former=present, owner=owner)
            except PrefixNotOwned as error:
                raise _not_owned(error) from error

    async def release(self, control_plane: ControlPlane) -> None:
        """Leave the keys of the control plane, but delete those of an unfinished copy.

        A prefix without keys becomes free.
        """
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        await self._keyspace.discard_unfinished(prefix, owner=owner)
        await self._keyspace.release(prefix, owner=owner)

    async def destroy(self, control_plane: ControlPlane) -> int:
        """Delete the keys, and return their number. Keys of another owner are deleted only if an annotation names them.

        Raises PrefixNotOwned.
        """
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        present = await self._keyspace.owner(prefix)
        if present is None and not await self._keyspace.count(prefix):
            # A pass after the last one does not claim the prefix again. If the operator were killed right then, the
            # claim would keep the path from other control planes.
            return 0
        if control_plane.metadata.annotations.get(DESTROY_DATA_ANNOTATION) == _named(prefix, present):
            await self._keyspace.take_over(prefix, former=present, owner=owner)
        else:
            await self._claim(control_plane)
        return await self._keyspace.delete_prefix(prefix, owner=owner)

    async def _claim(self, control_plane: ControlPlane) -> None:
        """Claim a prefix that is free, or that the control plane already had. Raises PrefixNotOwned."""
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        try:
            await self._keyspace.claim(prefix, owner=owner, known=False)
        except PrefixNotOwned as error:
            if error.owner is not None or not await self._is_known(control_plane):
                raise
            await self._keyspace.claim(prefix, owner=owner, known=True)

    async def _is_known(self, control_plane: ControlPlane) -> bool:
        """Return whether a prefix without an owner key belongs to the control plane.

        Early versions of kplane wrote no owner keys.
        """
        return control_plane.status.endpoint is not None or await self._keys.exist(control_plane)


def prefix_of(control_plane: ControlPlane) -> str:
    """Return the prefix from the recorded path, because the spec may have been edited a moment earlier."""
    return key_prefix(control_plane.status.cluster_path or control_plane.cluster_path)


def owner_of(control_plane: ControlPlane) -> Owner:
    """Return the owner of the prefix for etcd."""
    return Owner(control_plane.metadata.uid or "", control_plane.name)


def etcd_user(uid: str | None) -> str:
    """Return the user of etcd that may read and write below the prefix of the control plane with this uid."""
    # The name has the uid, so that certificates of an earlier control plane with the same path never become valid
    # again.
    return f"cp-{uid}"


def whose(error: PrefixNotOwned) -> str:
    """Return a description of the data and their owner, for messages."""
    owner = f"control plane {error.owner.label}" if error.owner is not None else "no control plane that is known"
    return f"{error.prefix} of the shared etcd, which belong to {owner}"


def _named(prefix: str, owner: Owner | None) -> str:
    """Return the value of the annotation that allows a control plane to destroy data of another owner."""
    return prefix if owner is None else f"{prefix}@{owner.uid}"


def _not_owned(error: PrefixNotOwned) -> ConditionError:
    return ConditionError(
        Reason.DATA_NOT_OWNED,
        f"there are data below {whose(error)}, so the operator starts nothing on them; choose another"
        f" spec.virtual.clusterPath. To destroy the data, set annotation {DESTROY_DATA_ANNOTATION} to"
        f" {_named(error.prefix, error.owner)} and spec.deletionPolicy to Destroy, and delete this control plane",
    )
