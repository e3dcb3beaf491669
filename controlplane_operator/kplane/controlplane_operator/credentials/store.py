"""Keys and certificates of managed control planes, in Secrets of their management namespaces."""

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
"""Names of the Secrets, by slot of the home whose programs use them."""


def _certificates(control_plane: ControlPlane) -> str:
    return _CERTIFICATES[control_plane.home.slot]


class TenantKeys:
    """Reads existing keys and certificates, and creates missing ones."""

    def __init__(self, context: OperatorContext, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Create the store; `now` is the clock for the check whether the validity of CAs has begun."""
        self._context = context
        self._now = now
        self._records = KeyRecords(context)
        self._saved = SavedKeys(context)

    async def authorities(
        self, control_plane: ControlPlane, *, has_data: Callable[[ControlPlane], Awaitable[bool]]
    ) -> TenantAuthorities:
        """Return the authorities, and create them at the first call. Keys are recorded before their Secret is written.

        Raises ConditionError (Failed) if the authorities are missing, and the control plane has data or was published.
        New authorities would lock out clients that trust the old ones. Also raises Failed if the validity of a CA
        begins in the future. Raises ConditionError (KeysUnusable) if an entry of the Secret is missing or damaged, and
        ConditionError (KeysChanged) if the keys differ from the record.
        """
        secret = None
        if not self._is_new(control_plane, AUTHORITIES_SECRET):
            secret = await self.repair(control_plane)
        if secret is None and control_plane.status.endpoint is None and not await has_data(control_plane):
            created = _new_generations(control_plane)
            with contextlib.suppress(AlreadyExists):
                await self._create(control_plane, created)
                return created.in_force()
        if secret is None:
            # The Secret may exist already without being in the cache.
            secret = await self.repair(control_plane)
        if secret is None:
            raise ConditionError(
                Reason.FAILED,
                f"there are data of this control plane, and Secret {_where(control_plane)} with its keys is gone;"
                " restore the Secret, or remove the data by deleting the control plane with deletionPolicy Destroy",
            )
        secret, generations, record = await self._verified(control_plane, secret)
        secret, generations = await self._valid(control_plane, secret, generations)
        await take_over_secret(self._context, control_plane, secret=secret)
        await self._settle_record(control_plane, generations, record=record)
        return generations.in_force()

    async def repair(self, control_plane: ControlPlane) -> Object | None:
        """Restore saved keys, and replace a Secret of authorities that a user deleted; return the Secret.

        The operator may end after each step: at least one of the two Secrets has the keys at any time. Raises
        ConditionError (Provisioning) until a deleted Secret is gone.
        """
        secret = await self._find(control_plane, AUTHORITIES_SECRET)
        saved = self._saved.find(control_plane)
        if saved is None and (secret is None or "deletionTimestamp" not in secret["metadata"]):
            return secret
        secret = await self._look(control_plane)
        if secret is not None and "deletionTimestamp" in secret["metadata"]:
            saved = await self._saved.save(control_plane, data=secret.get("data") or {})
            await unprotect_secret(self._context, secret)
            if await self._look(control_plane) is not None:
                message = f"Secret {_where(control_plane)} is being deleted; waiting until it is gone"
                raise ConditionError(Reason.PROVISIONING, message)
            secret = None
        if saved is not None and (entries := data_of(saved)):
            if secret is None:
                await create_lasting_secret(self._context, control_plane, name=AUTHORITIES_SECRET, data=entries)
            elif data_of(secret) != entries:
                # Another user created the Secret a moment earlier.
                await replace_data(self._context, secret, data=entries)
            self._context.events.record(
                control_plane, reason="KeysRestored", message=f"put its keys back into Secret {_where(control_plane)}"
            )
        await self._saved.forget(control_plane)
        return await self._find(control_plane, AUTHORITIES_SECRET)

    async def save(self, control_plane: ControlPlane, *, release: bool) -> None:
        """Save the keys outside of their namespace, which is being deleted.

        With `release`, then lets their Secret be deleted.
        """
        secret = await self._look(control_plane)
        if secret is not None:
            await self._saved.save(control_plane, data=secret.get("data") or {})
            if release:
                await unprotect_secret(self._context, secret)

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Let the keys be deleted with their namespace."""
        if (secret := await self._look(control_plane)) is not None:
            await unprotect_secret(self._context, secret)

    async def advance(self, control_plane: ControlPlane, *, known: Rotation | None, following: Rotation) -> bool:
        """Take the step of a rotation after `known`; return False if the Secret or its record has changed meanwhile."""
        # Read without the cache. A stale cache would make the record lose keys that were written a moment ago.
        secret = await self._look(control_plane)
        if secret is None:
            return False
        generations = _generations(control_plane, data_of(secret))
        present, record = generations.fingerprints(), await self._records.find(control_plane)
        if generations.rotation != known or record is None or not record.allows(present):
            return False
        advanced = generations.advanced(following, name=control_plane.name)
        if (changed := advanced.fingerprints()) != present:
            # Write the record first, so that it has the keys of the Secret before and after the Secret is written.
            await self._records.write(control_plane, KeyRecord((present, changed)))
        try:
            await replace_data(self._context, secret, data=advanced.to_secret())
        except Conflict:
            return False
        return True

    async def exist(self, control_plane: ControlPlane) -> bool:
        """Return whether `authorities` has created keys."""
        return await self._find(control_plane, AUTHORITIES_SECRET) is not None

    async def present(self, control_plane: ControlPlane) -> TenantAuthorities | None:
        """Return the authorities without creating any; None if they do not exist.

        Raises ConditionError if they are damaged (KeysUnusable), or differ from the record (KeysChanged).
        """
        secret = await self._find(control_plane, AUTHORITIES_SECRET)
        return (await self._verified(control_plane, secret))[1].in_force() if secret is not None else None

    async def exported(self, control_plane: ControlPlane) -> dict[str, bytes] | None:
        """Return the entries of the Secret of the authorities, read without the cache; None if it does not exist.

        Raises ConditionError as `present` does, because data saved with other keys are useless.
        """
        secret = await self._look(control_plane)
        return data_of((await self._verified(control_plane, secret))[0]) if secret is not None else None

    async def restore(self, control_plane: ControlPlane, *, data: Mapping[str, bytes]) -> None:
        """Create the Secret of the authorities from entries that `exported` returned for a former control plane.

        Does nothing if the Secret exists. Raises ConditionError (KeysUnusable) if the entries are damaged.
        """
        generations = _generations(control_plane, data)
        with contextlib.suppress(AlreadyExists):
            await self._create(control_plane, generations)

    async def issued(self, control_plane: ControlPlane) -> TenantCertificates | None:
        """Return the leaf certificates that `certificates` wrote last; None if there are none.

        Raises CredentialsInvalid if they are damaged.
        """
        secret = await self._find(control_plane, _certificates(control_plane))
        return TenantCertificates.from_secret(data_of(secret)) if secret is not None else None

    async def forget_certificates(self, control_plane: ControlPlane) -> None:
        """Delete the leaf certificates; `certificates` issues new ones."""
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
        """Return the leaf certificates, and renew those that are due."""
        new = self._is_new(control_plane, _certificates(control_plane))
        secret = None if new else await self._find(control_plane, _certificates(control_plane))
        renewed = partial(
            TenantCertificates.renewed,
            authorities=authorities,
            hosts=hosts,
            etcd_authority=etcd_authority,
            etcd_user=etcd_user,
            etcd_hosts=etcd_hosts,
            egress_hosts=egress_hosts,
            # The user name has the uid, because certificates cannot be revoked. The API server authenticates a
            # certificate of an earlier control plane with these CAs, but grants it no rights.
            controllers_user=f"{CONTROLLERS_USER}:{control_plane.metadata.uid}",
            now=datetime.now(UTC),
        )
        try:
            certificates = renewed(TenantCertificates.from_secret(data_of(secret)) if secret is not None else None)
        except CredentialsInvalid:
            # Leaf certificates are cheap, so damaged ones are replaced.
            certificates = renewed(None)
        await write_secret(
            self._context, control_plane, name=_certificates(control_plane), data=certificates.to_secret()
        )
        return certificates

    async def _verified(
        self, control_plane: ControlPlane, found: Object
    ) -> tuple[Object, Generations, KeyRecord | None]:
        """Return the Secret of the authorities, its content, and the record of its keys, once compared.

        The cache may be stale, because Secrets of sleeping control planes are read every ten minutes. So Secret and
        record are read again before keys are refused. Raises ConditionError (KeysUnusable, KeysChanged).
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
        """Limit the record to the present keys, if they are known to be right."""
        if record is not None and len(record.states) == 1:
            return
        present = generations.fingerprints()
        # Without a record, an early version of kplane made the keys, or a user removed the record. Otherwise the write
        # of a step of a rotation is done, and only the keys after it are allowed from now on.
        if record is None or record.states[-1] == present:
            await self._records.write(control_plane, KeyRecord((present,)))

    async def _valid(
        self, control_plane: ControlPlane, found: Object, generations: Generations
    ) -> tuple[Object, Generations]:
        """Return the Secret and its content if the validity of all CAs has begun, because programs reject them earlier.

        CAs that a clock issued while it was ahead are issued anew only on request of a rotation. The present clock may
        be the wrong one. Raises ConditionError (Failed) without such a request.
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
        """Return the Secret of the authorities from the API server; None if it does not exist."""
        namespace = management_namespace(control_plane.name)
        try:
            return await self._context.client.get(SECRETS, AUTHORITIES_SECRET, namespace=namespace)
        except NotFound:
            return None

    def _is_new(self, control_plane: ControlPlane, name: str) -> bool:
        """Return whether a Secret probably does not exist yet, so that a create is worth a try without a read.

        Secrets of a control plane that was never published are in the cache. A record of keys shows that an earlier try
        has begun.
        """
        key = management_namespace(control_plane.name), name
        never = control_plane.status.endpoint is None and self._saved.find(control_plane) is None
        return never and self._context.stores.secrets.get(key) is None and not self._records.is_known(control_plane)

    async def _find(self, control_plane: ControlPlane, name: str) -> Object | None:
        namespace = management_namespace(control_plane.name)
        return await find_secret(self._context, namespace=namespace, name=name, of=control_plane)

    async def _create(self, control_plane: ControlPlane, generations: Generations) -> None:
        """Record keys, then create their Secret. Raises AlreadyExists if the Secret exists, and restores the record.

        The order matters: if the operator ends between the two writes, other keys in the Secret do not match the
        record.
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
