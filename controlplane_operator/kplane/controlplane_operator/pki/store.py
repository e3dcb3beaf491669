"""Keeps a managed control plane's keys and certificates in Secrets of its management namespace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import ROTATE_ANNOTATION, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import CredentialsInvalid
from kplane.controlplane_operator.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.controlplane_operator.pki.generations import Generations
from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.controlplane_operator.pki.rotation import Rotation, begun_with
from kplane.controlplane_operator.pki.secrets import (
    create_lasting_secret,
    data_of,
    delete_secret,
    find_secret,
    replace_data,
    take_over_secret,
    write_secret,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import AlreadyExists, Conflict

__all__ = ["TenantKeys"]

_AUTHORITIES: Final = "control-plane-authorities"
_CERTIFICATES: Final = "control-plane-certificates"


class TenantKeys:
    """Reads what exists and creates what is missing."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    async def authorities(
        self, control_plane: ControlPlane, *, has_data: Callable[[ControlPlane], Awaitable[bool]]
    ) -> TenantAuthorities:
        """Return the authorities, created at the first call.

        Raises ConditionError (Failed) where they are missing although the control plane has data or was published: new
        ones would lock out everybody who trusts the old ones.
        """
        found = await self._find(control_plane, _AUTHORITIES)
        if found is None:
            if control_plane.status.endpoint is not None or await has_data(control_plane):
                raise ConditionError(
                    Reason.FAILED,
                    f"there are data of this control plane, and Secret {_where(control_plane)} with its keys is gone;"
                    " restore the Secret, or remove the data by deleting the control plane with deletionPolicy Destroy",
                )
            return _generations(control_plane, await self._create(control_plane)).in_force()
        generations = _generations(control_plane, data_of(found))
        await take_over_secret(self._context, control_plane, secret=found)
        return generations.in_force()

    async def advance(self, control_plane: ControlPlane, *, known: Rotation | None, following: Rotation) -> bool:
        """Take the step of an exchange that follows `known`, in one write; False where somebody else was quicker."""
        found = await self._find(control_plane, _AUTHORITIES)
        if found is None:
            return False
        generations = _generations(control_plane, data_of(found))
        if generations.rotation != known:
            return False
        advanced = generations.advanced(following, name=control_plane.name)
        try:
            await replace_data(self._context, found, data=advanced.to_secret())
        except Conflict:
            return False
        return True

    async def exist(self, control_plane: ControlPlane) -> bool:
        """Tell whether `authorities` has created any."""
        return await self._find(control_plane, _AUTHORITIES) is not None

    async def present(self, control_plane: ControlPlane) -> TenantAuthorities | None:
        """Return the authorities without creating any; raises ConditionError (Failed) where they are damaged."""
        found = await self._find(control_plane, _AUTHORITIES)
        return _generations(control_plane, data_of(found)).in_force() if found is not None else None

    async def forget_certificates(self, control_plane: ControlPlane) -> None:
        """Delete the leaf certificates; `certificates` issues others."""
        await delete_secret(self._context, control_plane, name=_CERTIFICATES)

    async def certificates(
        self,
        control_plane: ControlPlane,
        *,
        authorities: TenantAuthorities,
        hosts: Sequence[str],
        etcd_authority: KeyPair,
        etcd_user: str,
        etcd_hosts: Sequence[str] = (),
    ) -> TenantCertificates:
        """Return the leaf certificates, those that are due renewed."""
        found = await self._find(control_plane, _CERTIFICATES)
        renewed = partial(
            TenantCertificates.renewed,
            authorities=authorities,
            hosts=hosts,
            etcd_authority=etcd_authority,
            etcd_user=etcd_user,
            etcd_hosts=etcd_hosts,
            # By uid, because no certificate can be taken back: one of an earlier control plane whose CAs these are is
            # let in by the API server, and may do nothing there.
            controllers_user=f"{CONTROLLERS_USER}:{control_plane.metadata.uid}",
            now=datetime.now(UTC),
        )
        try:
            certificates = renewed(TenantCertificates.from_secret(data_of(found)) if found is not None else None)
        except CredentialsInvalid:
            # Leaf certificates are cheap: damaged ones are replaced.
            certificates = renewed(None)
        await write_secret(self._context, control_plane, name=_CERTIFICATES, data=certificates.to_secret())
        return certificates

    async def _find(self, control_plane: ControlPlane, name: str) -> Object | None:
        namespace = management_namespace(control_plane.name)
        return await find_secret(self._context, namespace=namespace, name=name, of=control_plane)

    async def _create(self, control_plane: ControlPlane) -> dict[str, bytes]:
        value = control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
        authorities = TenantAuthorities.create(control_plane.name)
        created = Generations(authorities, rotation=begun_with(value, now=datetime.now(UTC))).to_secret()
        try:
            await create_lasting_secret(self._context, control_plane, name=_AUTHORITIES, data=created)
        except AlreadyExists:
            found = await self._find(control_plane, _AUTHORITIES)
            return data_of(found) if found is not None else {}
        return created


def _generations(control_plane: ControlPlane, data: Mapping[str, bytes]) -> Generations:
    try:
        return Generations.from_secret(data)
    except CredentialsInvalid as error:
        raise ConditionError(
            Reason.FAILED, f"Secret {_where(control_plane)} is damaged: {error}; restore it"
        ) from error


def _where(control_plane: ControlPlane) -> str:
    return f"{management_namespace(control_plane.name)}/{_AUTHORITIES}"
