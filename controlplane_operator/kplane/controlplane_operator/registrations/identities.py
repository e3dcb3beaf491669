"""Identities of dedicated mcm in the management cluster, with rights to a single registration and its status.

`Access` grants the Secret that the registration resolves to, as for the shared mcm.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kplane.api import ResourceModel
from kplane.api.names import GROUP, REGISTRATION_LABEL, label_value
from kplane.controlplane_operator.grants import RBAC, Account, apply_rbac, is_as_written, uids_of
from kplane.controlplane_operator.kinds import owner_reference
from kplane.controlplane_operator.tenant.tokens import Token, request_token
from kplane.controlplane_operator.watch.cache import Object, key_of
from kplane.provider import Client, Event, NotFound, Resource
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)

__all__ = ["McmIdentities"]

_UID_LABEL: Final = f"{GROUP}/dedicated-uid"
"""Label with the uid of the registration, on the RBAC objects of a dedicated mcm."""
_EVENTS_NAMESPACE: Final = "default"
"""Namespace of the Events of cluster-scoped objects."""
_VERIFIED_SECONDS: Final = 600.0
"""Time for which written objects are assumed to exist."""
_TOKEN_LIFETIME: Final = timedelta(hours=72)
_RENEWED_AFTER: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class _KeptToken:
    token: Token
    issued_at: datetime
    renew_at: datetime


@dataclass(frozen=True, slots=True)
class _Written:
    """Objects that were written for an mcm, and the time until which they are assumed to exist."""

    account: Account
    until: float
    rights: tuple[tuple[Resource, Object], ...]


class McmIdentities:
    """ServiceAccounts of dedicated mcm and their rights, which are labelled with the uid of the registration.

    Call `load` before any other method. The rights end with their registration in any case, through the ownerReference.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._holders: set[str] = set()
        self._changed: set[str] = set()
        """Uids of registrations whose rights were changed since the last `load` began."""
        self._written: dict[str, _Written] = {}
        self._tokens: dict[Account, _KeptToken] = {}
        self._uids: dict[Account, str] = {}

    async def load(self) -> None:
        """List the registrations whose mcm has rights."""
        self._changed.clear()
        roles = await self._client.list(CLUSTER_ROLES, label_selector=_UID_LABEL)
        listed = {item["metadata"]["labels"][_UID_LABEL] for item in roles.items}
        # Changes made during the list request are newer than the list.
        self._holders = (listed - self._changed) | (self._holders & self._changed)

    def holders(self) -> set[str]:
        """Return the uids of the registrations whose mcm has rights."""
        return set(self._holders)

    async def ensure(self, registration: ResourceModel, *, account: Account) -> None:
        """Create or update the ServiceAccount and its rights to follow the registration.

        Writes of the last ten minutes are not repeated.
        """
        uid, now = registration.metadata.uid or "", time.monotonic()
        written = self._written.get(uid)
        if written is not None and written.account == account and now < written.until:
            return
        labels = {REGISTRATION_LABEL: label_value(registration.name)}
        # Recorded before the writes, because a `remove` may run meanwhile. It drops the record, and so has the objects
        # written again.
        rights = tuple(_rights(registration, labels=labels, account=account))
        self._written[uid] = _Written(account, now + _VERIFIED_SECONDS, rights)
        try:
            await self._ensure_account(account, labels=labels)
            await self._ensure_rights(uid, rights)
        except BaseException:
            self._written.pop(uid, None)
            raise

    def see(self, event: Event) -> set[str]:
        """Process a change of a ServiceAccount, role or binding. Returns the uids of registrations that lost rights.

        The operator's own writes match the record and have no effect.
        """
        if event.resource == SERVICE_ACCOUNTS:
            return self._lose(Account(*event.entry.key)) if event.kind == "DELETED" else set()
        broken = set()
        for uid in uids_of(event, label=_UID_LABEL):
            record = self._written.get(uid)
            if record is None:
                continue
            place = event.resource, event.entry.key
            body = next((body for kind, body in record.rights if (kind, key_of(body)) == place), None)
            if body is not None and (event.kind == "DELETED" or not is_as_written(event.object, body)):
                del self._written[uid]
                broken.add(uid)
        return broken

    def _lose(self, account: Account) -> set[str]:
        # `remove` drops the record of an account before it deletes the account.
        lost = {uid for uid, record in self._written.items() if record.account == account}
        for uid in lost:
            del self._written[uid]
        return lost

    async def _ensure_rights(self, uid: str, rights: tuple[tuple[Resource, Object], ...]) -> None:
        try:
            for resource, body in rights:
                await apply_rbac(self._client, resource, body)
        finally:
            # Recorded also if the answer to a write was lost. Not recorded before the write, because a concurrent
            # `load` would drop the record.
            self._holders.add(uid)
            self._changed.add(uid)

    async def _ensure_account(self, account: Account, *, labels: dict[str, str]) -> None:
        body = {"metadata": {**account._asdict(), "labels": labels}, "automountServiceAccountToken": False}
        uid = (await self._client.apply(SERVICE_ACCOUNTS, body, force=True))["metadata"]["uid"]
        if self._uids.get(account) != uid:
            # The tokens of a deleted ServiceAccount are invalid.
            self._tokens.pop(account, None)
        self._uids[account] = uid

    async def token(self, account: Account) -> str:
        """Return a token of the ServiceAccount, valid for hours. Raises BootstrapFailed if no token is issued."""
        now = datetime.now(UTC)
        cached = self._tokens.get(account)
        # An issue time in the future means that the clock was ahead at the time of issue, so the expiry is wrong.
        if cached is None or not cached.issued_at <= now < cached.renew_at:
            token = await request_token(
                self._client, service_account=account.name, lifetime=_TOKEN_LIFETIME, namespace=account.namespace
            )
            renew_at = now + (token.expires_at - now) * _RENEWED_AFTER
            cached = self._tokens[account] = _KeptToken(token, issued_at=now, renew_at=renew_at)
        return cached.token.value

    def renewed_in(self, account: Account) -> float:
        """Return the seconds until the token of the ServiceAccount must be renewed; 0 without a valid token."""
        cached = self._tokens.get(account)
        now = datetime.now(UTC)
        return (cached.renew_at - now).total_seconds() if cached is not None and cached.issued_at <= now else 0.0

    async def revoke(self, uid: str) -> None:
        """Delete the rights of the mcm of the registration with this uid, if there are any."""
        if uid not in self._holders:
            return
        self._written.pop(uid, None)
        name = _name(uid)
        for resource, namespace in (
            (CLUSTER_ROLE_BINDINGS, None),
            (ROLE_BINDINGS, _EVENTS_NAMESPACE),
            (ROLES, _EVENTS_NAMESPACE),
            (CLUSTER_ROLES, None),
        ):
            with contextlib.suppress(NotFound):
                await self._client.delete(resource, name, namespace=namespace)
        self._holders.discard(uid)
        self._changed.add(uid)

    def forget(self, namespace: str) -> None:
        """Drop the records of ServiceAccounts in a deleted namespace, so that they are written again."""
        self._written = {uid: record for uid, record in self._written.items() if record.account.namespace != namespace}

    async def remove(self, account: Account) -> None:
        """Delete the ServiceAccount, which invalidates its tokens."""
        self._tokens.pop(account, None)
        self._uids.pop(account, None)
        self._written = {uid: record for uid, record in self._written.items() if record.account != account}
        with contextlib.suppress(NotFound):
            await self._client.delete(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)


def _rights(
    registration: ResourceModel, *, labels: dict[str, str], account: Account
) -> Iterator[tuple[Resource, Object]]:
    """Yield the RBAC objects of an mcm, in the order of their creation."""
    uid = registration.metadata.uid or ""
    metadata = {
        "name": _name(uid),
        "labels": {**labels, _UID_LABEL: uid},
        "ownerReferences": [owner_reference(registration)],
    }
    named = {"apiGroups": [GROUP], "resourceNames": [registration.name]}
    rules = [
        {**named, "resources": ["controlplaneregistrations"], "verbs": ["get", "list", "watch"]},
        {**named, "resources": ["controlplaneregistrations/status"], "verbs": ["patch"]},
    ]
    yield CLUSTER_ROLES, {"metadata": metadata, "rules": rules}
    yield CLUSTER_ROLE_BINDINGS, _binding(metadata, kind="ClusterRole", account=account)
    events = {**metadata, "namespace": _EVENTS_NAMESPACE}
    rules = [{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["get", "create", "patch"]}]
    yield ROLES, {"metadata": events, "rules": rules}
    yield ROLE_BINDINGS, _binding(events, kind="Role", account=account)


def _binding(metadata: dict[str, Any], *, kind: str, account: Account) -> dict[str, Any]:
    role = {"apiGroup": RBAC, "kind": kind, "name": metadata["name"]}
    return {"metadata": metadata, "roleRef": role, "subjects": [account.subject()]}


def _name(uid: str) -> str:
    return f"kplane-registration-{hashlib.sha256(uid.encode()).hexdigest()[:16]}"
