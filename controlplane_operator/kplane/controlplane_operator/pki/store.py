"""Keeps a managed control plane's keys and certificates in Secrets of its management namespace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, Self

from kplane.api import ControlPlane, RotationPhase
from kplane.api.names import ROTATE_ANNOTATION, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import CredentialsInvalid
from kplane.controlplane_operator.pki.authorities import (
    CONTROLLERS_USER,
    ENCRYPTION_KEY,
    TenantAuthorities,
    TenantCertificates,
    TrustedAuthorities,
)
from kplane.controlplane_operator.pki.primitives import (
    KeyPair,
    public_key,
)
from kplane.controlplane_operator.pki.rotation import Rotation, begun_with
from kplane.controlplane_operator.pki.saved import SavedKeys
from kplane.controlplane_operator.pki.secrets import (
    create_lasting_secret,
    data_of,
    delete_secret,
    find_secret,
    replace_data,
    take_over_secret,
    unprotect_secret,
    write_secret,
)
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import AlreadyExists, Conflict, NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["AUTHORITIES_SECRET", "Generations", "TenantKeys"]


_NEXT: Final = "next-"
_ROTATION: Final = "rotation.json"


@dataclass(frozen=True, slots=True)
class Generations:
    """What the Secret of the authorities holds: one write of it is one step of an exchange, or none."""

    present: TenantAuthorities
    """The only ones; during an exchange the old ones."""
    following: TenantAuthorities | None = None
    """During an exchange the new ones."""
    rotation: Rotation | None = None
    """The latest exchange; None where there was none yet."""

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read what `to_secret` wrote. Raises CredentialsInvalid with the entry that is missing or damaged."""
        rotation = _rotation(data)
        present, following = TenantAuthorities.from_secret(data), None
        if rotation is not None and rotation.phase is not RotationPhase.DONE:
            try:
                following = TenantAuthorities.from_secret(
                    {name.removeprefix(_NEXT): value for name, value in data.items() if name.startswith(_NEXT)}
                    | {name: value for name, value in data.items() if name == ENCRYPTION_KEY}
                )
            except CredentialsInvalid as error:
                raise CredentialsInvalid(f"of the new keys, whose entries begin with {_NEXT}: {error}") from None
        return cls(present, following, rotation)

    def to_secret(self) -> dict[str, bytes]:
        """Return the data of a Secret that only the operator may read; an entry that is not in it has to go."""
        following = self.following.to_secret() if self.following is not None else {}
        rotation = self.rotation
        return {
            **self.present.to_secret(),
            **{f"{_NEXT}{name}": content for name, content in following.items() if name != ENCRYPTION_KEY},
            **({_ROTATION: json.dumps(rotation.to_json()).encode()} if rotation is not None else {}),
        }

    def advanced(self, rotation: Rotation, *, name: str) -> Self:
        """Return what there is as of the next step; `name` is the control plane's, for the new authorities."""
        match rotation.phase:
            case RotationPhase.TRUSTING:
                created = replace(TenantAuthorities.create(name), encryption_key=self.present.encryption_key)
                return replace(self, following=created, rotation=rotation)
            case RotationPhase.DONE if self.following is not None:
                return replace(self, present=self.following, following=None, rotation=rotation)
        return replace(self, rotation=rotation)

    def in_force(self) -> TenantAuthorities:
        """Return the authorities that issue now, with those that are trusted besides."""
        old, new, rotation = self.present, self.following, self.rotation
        if new is None or rotation is None:
            return replace(old, rotation=rotation)
        match rotation.phase:
            case RotationPhase.TRUSTING:
                return replace(old, also_trusted=_trusted(new), rotation=rotation)
            case RotationPhase.OVERLAPPING:
                # The API server's own certificate is of the old CA, which all clients trust.
                trusted = replace(_trusted(old), serving=new.serving.certificate)
                return replace(new, serving=old.serving, also_trusted=trusted, rotation=rotation)
            case RotationPhase.DROPPING | RotationPhase.DONE:
                trusted = TrustedAuthorities(serving=old.serving.certificate)
                return replace(new, also_trusted=trusted, rotation=rotation)


def _trusted(authorities: TenantAuthorities) -> TrustedAuthorities:
    return TrustedAuthorities(
        serving=authorities.serving.certificate,
        client=authorities.client.certificate,
        front_proxy=authorities.front_proxy.certificate,
        etcd=authorities.etcd.certificate,
        service_account=public_key(authorities.service_account_key),
    )


def _rotation(data: Mapping[str, bytes]) -> Rotation | None:
    if _ROTATION not in data:
        return None
    try:
        return Rotation.from_json(json.loads(data[_ROTATION]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CredentialsInvalid(f"entry {_ROTATION} cannot be read") from None


AUTHORITIES_SECRET: Final = "control-plane-authorities"  # noqa: S105 - the name of a Secret
_CERTIFICATES: Final = ("control-plane-certificates", "control-plane-certificates-2")
"""By the slot of the home whose programs have them."""


def _certificates(control_plane: ControlPlane) -> str:
    return _CERTIFICATES[control_plane.home.slot]


class TenantKeys:
    """Reads what exists and creates what is missing."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._saved = SavedKeys(context)

    async def authorities(
        self, control_plane: ControlPlane, *, has_data: Callable[[ControlPlane], Awaitable[bool]]
    ) -> TenantAuthorities:
        """Return the authorities, created at the first call.

        Raises ConditionError (Failed) where they are missing although the control plane has data or was published: new
        ones would lock out everybody who trusts the old ones.
        """
        found = None
        if not self._is_new(control_plane, AUTHORITIES_SECRET):
            found = await self.repair(control_plane)
        if found is None and control_plane.status.endpoint is None and not await has_data(control_plane):
            with contextlib.suppress(AlreadyExists):
                return _generations(control_plane, await self._create(control_plane)).in_force()
        if found is None:
            # There may be one that the operator has not seen yet.
            found = await self.repair(control_plane)
        if found is None:
            raise ConditionError(
                Reason.FAILED,
                f"there are data of this control plane, and Secret {_where(control_plane)} with its keys is gone;"
                " restore the Secret, or remove the data by deleting the control plane with deletionPolicy Destroy",
            )
        generations = _generations(control_plane, data_of(found))
        await take_over_secret(self._context, control_plane, secret=found)
        return generations.in_force()

    async def repair(self, control_plane: ControlPlane) -> Object | None:
        """Put the keys back that were saved, and replace their Secret if a user deleted it; returns that Secret.

        Each step may be the last one of this operator: the keys are in one of the two Secrets at any time. Raises
        ConditionError (Provisioning) while a deleted Secret is not gone yet.
        """
        found = await self._find(control_plane, AUTHORITIES_SECRET)
        saved = self._saved.find(control_plane)
        if saved is None and (found is None or "deletionTimestamp" not in found["metadata"]):
            return found
        found = await self._look(control_plane)
        if found is not None and "deletionTimestamp" in found["metadata"]:
            saved = await self._saved.save(control_plane, data=found.get("data") or {})
            await unprotect_secret(self._context, found)
            if await self._look(control_plane) is not None:
                said = f"Secret {_where(control_plane)} is being deleted; waiting until it is gone"
                raise ConditionError(Reason.PROVISIONING, said)
            found = None
        if saved is not None and (kept := data_of(saved)):
            if found is None:
                await create_lasting_secret(self._context, control_plane, name=AUTHORITIES_SECRET, data=kept)
            elif data_of(found) != kept:
                # Another user made it, in the moment before.
                await replace_data(self._context, found, data=kept)
            self._context.events.record(
                control_plane, reason="KeysRestored", message=f"put its keys back into Secret {_where(control_plane)}"
            )
        await self._saved.forget(control_plane)
        return await self._find(control_plane, AUTHORITIES_SECRET)

    async def save(self, control_plane: ControlPlane, *, release: bool) -> None:
        """Save the keys outside of their namespace, which is being deleted; `release` lets it go then."""
        found = await self._look(control_plane)
        if found is not None:
            await self._saved.save(control_plane, data=found.get("data") or {})
            if release:
                await unprotect_secret(self._context, found)

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Let the keys be deleted with their namespace."""
        if (found := await self._look(control_plane)) is not None:
            await unprotect_secret(self._context, found)

    async def advance(self, control_plane: ControlPlane, *, known: Rotation | None, following: Rotation) -> bool:
        """Take the step of an exchange that follows `known`, in one write; False if another write was quicker."""
        found = await self._find(control_plane, AUTHORITIES_SECRET)
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
        return await self._find(control_plane, AUTHORITIES_SECRET) is not None

    async def present(self, control_plane: ControlPlane) -> TenantAuthorities | None:
        """Return the authorities without creating any; raises ConditionError (Failed) where they are damaged."""
        found = await self._find(control_plane, AUTHORITIES_SECRET)
        return _generations(control_plane, data_of(found)).in_force() if found is not None else None

    async def exported(self, control_plane: ControlPlane) -> dict[str, bytes] | None:
        """Return the entries of the Secret of the authorities, as it is at this moment; None if there is none."""
        found = await self._look(control_plane)
        return data_of(found) if found is not None else None

    async def restore(self, control_plane: ControlPlane, *, data: Mapping[str, bytes]) -> None:
        """Begin with these entries, which `exported` returned of a former control plane.

        Raises ConditionError (Failed) where they are damaged.
        """
        _generations(control_plane, data)
        with contextlib.suppress(AlreadyExists):
            await create_lasting_secret(self._context, control_plane, name=AUTHORITIES_SECRET, data=data)

    async def issued(self, control_plane: ControlPlane) -> TenantCertificates | None:
        """Return the leaf certificates that `certificates` wrote last; None if there are none.

        Raises CredentialsInvalid.
        """
        found = await self._find(control_plane, _certificates(control_plane))
        return TenantCertificates.from_secret(data_of(found)) if found is not None else None

    async def forget_certificates(self, control_plane: ControlPlane) -> None:
        """Delete the leaf certificates; `certificates` issues others."""
        await delete_secret(self._context, control_plane, name=_certificates(control_plane))

    async def certificates(
        self,
        control_plane: ControlPlane,
        *,
        authorities: TenantAuthorities,
        hosts: Sequence[str],
        etcd_authority: KeyPair,
        etcd_user: str,
        etcd_hosts: Sequence[str] = (),
        egress_hosts: Sequence[str] = (),
    ) -> TenantCertificates:
        """Return the leaf certificates, those that are due renewed."""
        new = self._is_new(control_plane, _certificates(control_plane))
        found = None if new else await self._find(control_plane, _certificates(control_plane))
        renewed = partial(
            TenantCertificates.renewed,
            authorities=authorities,
            hosts=hosts,
            etcd_authority=etcd_authority,
            etcd_user=etcd_user,
            etcd_hosts=etcd_hosts,
            egress_hosts=egress_hosts,
            # By uid, because a certificate cannot be revoked. One of an earlier control plane with these CAs is
            # authenticated by the API server, and has no rights.
            controllers_user=f"{CONTROLLERS_USER}:{control_plane.metadata.uid}",
            now=datetime.now(UTC),
        )
        try:
            certificates = renewed(TenantCertificates.from_secret(data_of(found)) if found is not None else None)
        except CredentialsInvalid:
            # Leaf certificates are cheap: damaged ones are replaced.
            certificates = renewed(None)
        await write_secret(
            self._context, control_plane, name=_certificates(control_plane), data=certificates.to_secret()
        )
        return certificates

    async def _look(self, control_plane: ControlPlane) -> Object | None:
        """Return the Secret of the authorities as it is at this moment."""
        namespace = management_namespace(control_plane.name)
        try:
            return await self._context.client.get(SECRETS, AUTHORITIES_SECRET, namespace=namespace)
        except NotFound:
            return None

    def _is_new(self, control_plane: ControlPlane, name: str) -> bool:
        """Tell whether a Secret is probably not there yet, so that it is worth a try to create it without a look.

        The Secrets of a control plane that was never published are watched.
        """
        key = management_namespace(control_plane.name), name
        never = control_plane.status.endpoint is None and self._saved.find(control_plane) is None
        return never and self._context.stores.secrets.get(key) is None

    async def _find(self, control_plane: ControlPlane, name: str) -> Object | None:
        namespace = management_namespace(control_plane.name)
        return await find_secret(self._context, namespace=namespace, name=name, of=control_plane)

    async def _create(self, control_plane: ControlPlane) -> dict[str, bytes]:
        value = control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
        authorities = TenantAuthorities.create(control_plane.name)
        created = Generations(authorities, rotation=begun_with(value, now=datetime.now(UTC))).to_secret()
        await create_lasting_secret(self._context, control_plane, name=AUTHORITIES_SECRET, data=created)
        return created


def _generations(control_plane: ControlPlane, data: Mapping[str, bytes]) -> Generations:
    try:
        return Generations.from_secret(data)
    except CredentialsInvalid as error:
        raise ConditionError(
            Reason.FAILED, f"Secret {_where(control_plane)} is damaged: {error}; restore it"
        ) from error


def _where(control_plane: ControlPlane) -> str:
    return f"{management_namespace(control_plane.name)}/{AUTHORITIES_SECRET}"
