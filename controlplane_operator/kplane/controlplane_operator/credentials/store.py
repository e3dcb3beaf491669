"""Keeps a managed control plane's keys and certificates in Secrets of its management namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import KEY_FINGERPRINTS_ANNOTATION, ROTATE_ANNOTATION, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.key_records import KeyRecord, KeyRecords
from kplane.controlplane_operator.credentials.saved import SavedKeys
from kplane.controlplane_operator.credentials.secrets import (
    create_lasting_secret,
    delete_secret,
    find_secret,
    replace_data,
    take_over_secret,
    unprotect_secret,
    write_secret,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.pki.entries import data_of
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.generations import Generations
from kplane.pki.primitives import KeyPair
from kplane.pki.rotation import Rotation, RotationWish, begun_with, is_wanted
from kplane.provider import AlreadyExists, Conflict, NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["AUTHORITIES_SECRET", "TenantKeys"]

AUTHORITIES_SECRET: Final = "control-plane-authorities"  # noqa: S105 - the name of a Secret
_CERTIFICATES: Final = ("control-plane-certificates", "control-plane-certificates-2")
"""By the slot of the home whose programs have them."""


def _certificates(control_plane: ControlPlane) -> str:
    return _CERTIFICATES[control_plane.home.slot]


class TenantKeys:
    """Reads what exists and creates what is missing."""

    def __init__(self, context: OperatorContext, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`now` is the clock by which the life of a CA has begun."""
        self._context = context
        self._now = now
        self._records = KeyRecords(context)
        self._saved = SavedKeys(context)

    async def authorities(
        self, control_plane: ControlPlane, *, has_data: Callable[[ControlPlane], Awaitable[bool]]
    ) -> TenantAuthorities:
        """Return the authorities, created at the first call. Keys are recorded before they exist.

        Raises ConditionError (Failed) where they are missing although the control plane has data or was published: new
        ones would lock out everybody who trusts the old ones. Raises ConditionError (KeysUnusable) if an entry of their
        Secret is missing or damaged, and ConditionError (KeysChanged) if they are others than the recorded ones.
        """
        found = None
        if not self._is_new(control_plane, AUTHORITIES_SECRET):
            found = await self.repair(control_plane)
        if found is None and control_plane.status.endpoint is None and not await has_data(control_plane):
            created = _new_generations(control_plane)
            with contextlib.suppress(AlreadyExists):
                await self._create(control_plane, created)
                return created.in_force()
        if found is None:
            # There may be one that the operator has not seen yet.
            found = await self.repair(control_plane)
        if found is None:
            raise ConditionError(
                Reason.FAILED,
                f"there are data of this control plane, and Secret {_where(control_plane)} with its keys is gone;"
                " restore the Secret, or remove the data by deleting the control plane with deletionPolicy Destroy",
            )
        found, generations, record = await self._verified(control_plane, found)
        found, generations = await self._valid(control_plane, found, generations)
        await take_over_secret(self._context, control_plane, secret=found)
        await self._settle_record(control_plane, generations, record=record)
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
        """Take the step of an exchange that follows `known`; False if another write of the Secret was quicker."""
        # As it is at this moment: with a cache that is behind, the record would lose keys that were written just now.
        found = await self._look(control_plane)
        if found is None:
            return False
        generations = _generations(control_plane, data_of(found))
        present, record = generations.fingerprints(), await self._records.find(control_plane)
        if generations.rotation != known or record is None or not record.allows(present):
            return False
        advanced = generations.advanced(following, name=control_plane.name)
        if (changed := advanced.fingerprints()) != present:
            # First: whether the Secret is written afterwards or not, its keys are recorded.
            await self._records.write(control_plane, KeyRecord((present, changed)))
        try:
            await replace_data(self._context, found, data=advanced.to_secret())
        except Conflict:
            return False
        return True

    async def exist(self, control_plane: ControlPlane) -> bool:
        """Tell whether `authorities` has created any."""
        return await self._find(control_plane, AUTHORITIES_SECRET) is not None

    async def present(self, control_plane: ControlPlane) -> TenantAuthorities | None:
        """Return the authorities without creating any.

        Raises ConditionError if they are damaged (KeysUnusable), or others than the recorded ones (KeysChanged).
        """
        found = await self._find(control_plane, AUTHORITIES_SECRET)
        return (await self._verified(control_plane, found))[1].in_force() if found is not None else None

    async def exported(self, control_plane: ControlPlane) -> dict[str, bytes] | None:
        """Return the entries of the Secret of the authorities, as it is at this moment; None if there is none.

        Raises ConditionError as `present` does: data that are saved with other keys are worth nothing.
        """
        found = await self._look(control_plane)
        return data_of((await self._verified(control_plane, found))[0]) if found is not None else None

    async def restore(self, control_plane: ControlPlane, *, data: Mapping[str, bytes]) -> None:
        """Begin with these entries, which `exported` returned of a former control plane.

        Raises ConditionError (KeysUnusable) if they are damaged.
        """
        generations = _generations(control_plane, data)
        with contextlib.suppress(AlreadyExists):
            await self._create(control_plane, generations)

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

    async def _verified(
        self, control_plane: ControlPlane, found: Object
    ) -> tuple[Object, Generations, KeyRecord | None]:
        """Return the Secret of the authorities, what it holds, and the record of its keys, if that allows them.

        What is watched may be behind: the Secrets of a control plane that sleeps are read every ten minutes. So both
        are read anew before keys are refused. Raises ConditionError (KeysUnusable, KeysChanged).
        """
        try:
            return found, *await self._compared(control_plane, found)
        except ConditionError:
            fresh = await self._look(control_plane)
            if fresh is None:
                raise
        self._context.stores.secrets.apply(fresh)
        await self._records.refresh(control_plane)
        return fresh, *await self._compared(control_plane, fresh)

    async def _compared(self, control_plane: ControlPlane, found: Object) -> tuple[Generations, KeyRecord | None]:
        generations, record = _generations(control_plane, data_of(found)), await self._records.find(control_plane)
        if record is not None and not record.allows(present := generations.fingerprints()):
            raise _other_keys(control_plane, record.differing(present))
        return generations, record

    async def _settle_record(
        self, control_plane: ControlPlane, generations: Generations, *, record: KeyRecord | None
    ) -> None:
        """Record the present keys alone, where that is not so and known to be right."""
        if record is not None and len(record.states) == 1:
            return
        present = generations.fingerprints()
        # A version without records made the keys, or a user removed the record. Otherwise the write of a step of a
        # rotation is done, and only the keys after it are allowed from now on.
        if record is None or record.states[-1] == present:
            await self._records.write(control_plane, KeyRecord((present,)))

    async def _valid(
        self, control_plane: ControlPlane, found: Object, generations: Generations
    ) -> tuple[Object, Generations]:
        """Return the Secret and what it holds, if the life of all CAs has begun: programs accept them only then.

        Certificates that a clock issued while it was ahead are issued anew only if a rotation is asked for. The present
        clock may be the wrong one. Raises ConditionError (Failed).
        """
        now = self._now()
        if not (begins := generations.not_yet_valid(now=now)):
            return found, generations
        wish = RotationWish(control_plane.metadata.annotations.get(ROTATE_ANNOTATION))
        if not is_wanted(generations.rotation, wish=wish):
            raise _not_yet_valid(control_plane, begins)
        renewed = generations.with_valid_authorities(now=now)
        found = await replace_data(self._context, found, data=renewed.to_secret())
        self._context.events.record(
            control_plane,
            reason="AuthoritiesRenewed",
            message=f"issued {' and '.join(begins)} anew, by the same keys: their life began in the future",
        )
        return found, renewed

    async def _look(self, control_plane: ControlPlane) -> Object | None:
        """Return the Secret of the authorities as it is at this moment."""
        namespace = management_namespace(control_plane.name)
        try:
            return await self._context.client.get(SECRETS, AUTHORITIES_SECRET, namespace=namespace)
        except NotFound:
            return None

    def _is_new(self, control_plane: ControlPlane, name: str) -> bool:
        """Tell whether a Secret is probably not there yet, so that it is worth a try to create it without a look.

        The Secrets of a control plane that was never published are watched. A record of keys shows that an earlier try
        has begun.
        """
        key = management_namespace(control_plane.name), name
        never = control_plane.status.endpoint is None and self._saved.find(control_plane) is None
        return never and self._context.stores.secrets.get(key) is None and not self._records.is_known(control_plane)

    async def _find(self, control_plane: ControlPlane, name: str) -> Object | None:
        namespace = management_namespace(control_plane.name)
        return await find_secret(self._context, namespace=namespace, name=name, of=control_plane)

    async def _create(self, control_plane: ControlPlane, generations: Generations) -> None:
        """Record keys, then create their Secret. Raises AlreadyExists if there is one; the record is as before then.

        In this order: if the operator ends between the two writes, other keys in the Secret are not taken for these.
        """
        former = await self._records.find(control_plane)
        await self._records.write(control_plane, KeyRecord((generations.fingerprints(),)))
        data = generations.to_secret()
        try:
            await create_lasting_secret(self._context, control_plane, name=AUTHORITIES_SECRET, data=data)
        except AlreadyExists:
            await self._records.write(control_plane, former)
            raise


def _new_generations(control_plane: ControlPlane) -> Generations:
    value = control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
    return Generations(TenantAuthorities.create(control_plane.name), rotation=begun_with(value, now=datetime.now(UTC)))


def _generations(control_plane: ControlPlane, data: Mapping[str, bytes]) -> Generations:
    try:
        return Generations.from_secret(data)
    except CredentialsInvalid as error:
        raise ConditionError(
            Reason.KEYS_UNUSABLE,
            f"failed to use the keys of the control plane: Secret {_where(control_plane)} is damaged: {error};"
            " restore it from a backup",
        ) from error


def _other_keys(control_plane: ControlPlane, entries: Sequence[str]) -> ConditionError:
    return ConditionError(
        Reason.KEYS_CHANGED,
        f"failed to use the keys of the control plane: Secret {_where(control_plane)} has another"
        f" {' and '.join(entries)} than before; restore the Secret from a backup with the former keys, whose SHA-256 is"
        f" in annotation {KEY_FINGERPRINTS_ANNOTATION} of namespace {management_namespace(control_plane.name)}. To"
        " continue with the present keys, remove that annotation: what the former keys encrypted stays unreadable, and"
        " what they signed is refused",
    )


def _not_yet_valid(control_plane: ControlPlane, begins: Mapping[str, datetime]) -> ConditionError:
    latest = max(begins.values())
    return ConditionError(
        Reason.FAILED,
        f"failed to use the CAs of the control plane: the life of {' and '.join(begins)} in Secret"
        f" {_where(control_plane)} begins in the future, because a clock was ahead when they were created; check the"
        f" clock of the operator. The control plane recovers by itself at {latest:%Y-%m-%d %H:%M:%S} UTC. To have these"
        f" certificates issued anew now, set annotation {ROTATE_ANNOTATION} to a new value: users then fetch the"
        " kubeconfig again",
    )


def _where(control_plane: ControlPlane) -> str:
    return f"{management_namespace(control_plane.name)}/{AUTHORITIES_SECRET}"
