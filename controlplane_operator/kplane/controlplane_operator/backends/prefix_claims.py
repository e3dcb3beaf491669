"""Which control plane a key prefix of the shared etcd belongs to."""

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
    """Claims prefixes for control planes, before anything is made below them, and gives them up."""

    def __init__(self, shared: SharedEtcd, *, keys: TenantKeys, access: AccessControl) -> None:
        self._shared = shared
        self._keys = keys
        self._access = access

    @property
    def _keyspace(self) -> Keyspace:
        # Each time: its credentials may come later than the operator starts.
        return self._shared.keyspace

    async def claim(self, control_plane: ControlPlane) -> None:
        """Make the prefix the control plane's. Raises ConditionError (DataNotOwned)."""
        user = etcd_user(control_plane.metadata.uid)
        if self._access.is_granted(user):
            return
        published = control_plane.status.endpoint is not None
        with start_errors(published=published):
            try:
                await self._claim(control_plane)
            except PrefixNotOwned as error:
                # It may have had the prefix before the etcd was restored.
                await self._access.revoke(user)
                raise _not_owned(error) from error

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Tell whether there are keys of the control plane below its prefix."""
        prefix = prefix_of(control_plane)
        with start_errors(published=False):
            found = await self._keyspace.owner(prefix)
            if found != owner_of(control_plane) and (found is not None or not await self._is_known(control_plane)):
                return False
            return await self._keyspace.count(prefix) > 0

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Have the etcd forget the former user, whose API server may run still, and name the new owner of the keys."""
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        with start_errors(published=False):
            await self._access.revoke(etcd_user(former))
            found = await self._keyspace.owner(prefix)
            try:
                if found is not None and found.uid != former:
                    await self._keyspace.claim(prefix, owner=owner, known=False)
                else:
                    await self._keyspace.take_over(prefix, former=found, owner=owner)
            except PrefixNotOwned as error:
                raise _not_owned(error) from error

    async def release(self, control_plane: ControlPlane) -> None:
        """Leave the keys, but not a part of a copy; a path without any is free for others."""
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        await self._keyspace.discard_unfinished(prefix, owner=owner)
        await self._keyspace.release(prefix, owner=owner)

    async def destroy(self, control_plane: ControlPlane) -> int:
        """Delete the keys, those of another owner only if an annotation names them; returns how many there were.

        Raises PrefixNotOwned.
        """
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        found = await self._keyspace.owner(prefix)
        if found is None and not await self._keyspace.count(prefix):
            # A pass after the last one names no owner again: killed right then, it would keep the path from others.
            return 0
        if control_plane.metadata.annotations.get(DESTROY_DATA_ANNOTATION) == _named(prefix, found):
            await self._keyspace.take_over(prefix, former=found, owner=owner)
        else:
            await self._claim(control_plane)
        return await self._keyspace.delete_prefix(prefix, owner=owner)

    async def _claim(self, control_plane: ControlPlane) -> None:
        """Make a prefix the control plane's that is free, or was its own already. Raises PrefixNotOwned."""
        prefix, owner = prefix_of(control_plane), owner_of(control_plane)
        try:
            await self._keyspace.claim(prefix, owner=owner, known=False)
        except PrefixNotOwned as error:
            if error.owner is not None or not await self._is_known(control_plane):
                raise
            await self._keyspace.claim(prefix, owner=owner, known=True)

    async def _is_known(self, control_plane: ControlPlane) -> bool:
        """Tell whether a prefix without owner key is the control plane's: a version without such keys made it."""
        return control_plane.status.endpoint is not None or await self._keys.exist(control_plane)


def prefix_of(control_plane: ControlPlane) -> str:
    """Return the prefix, as written down before anything was made: the spec may have been edited a moment earlier."""
    return key_prefix(control_plane.status.cluster_path or control_plane.cluster_path)


def owner_of(control_plane: ControlPlane) -> Owner:
    """Return what the etcd names as owner of the prefix."""
    return Owner(control_plane.metadata.uid or "", control_plane.name)


def etcd_user(uid: str | None) -> str:
    """Return the user that may read and write below the prefix of the control plane with this uid."""
    # By uid: a certificate of an earlier control plane of the same path must never be worth anything again.
    return f"cp-{uid}"


def whose(error: PrefixNotOwned) -> str:
    """Say whose the data are."""
    owner = f"control plane {error.owner.label}" if error.owner is not None else "no control plane that is known"
    return f"{error.prefix} of the shared etcd, which belong to {owner}"


def _named(prefix: str, owner: Owner | None) -> str:
    """Return what the annotation has to say of data that are not the control plane's, so that it may destroy them."""
    return prefix if owner is None else f"{prefix}@{owner.uid}"


def _not_owned(error: PrefixNotOwned) -> ConditionError:
    return ConditionError(
        Reason.DATA_NOT_OWNED,
        f"there are data below {whose(error)}, so the operator starts nothing on them; choose another"
        f" spec.virtual.clusterPath. To destroy the data, set annotation {DESTROY_DATA_ANNOTATION} to"
        f" {_named(error.prefix, error.owner)} and spec.deletionPolicy to Destroy, and delete this control plane",
    )
