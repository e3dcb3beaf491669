"""Who a dedicated mcm is in the management cluster, and what it may do there: follow one registration, and tell of it.

The Secret that the registration resolves to is granted by `Access`, as to the shared mcm.
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
"""On the identity of a dedicated mcm and its RBAC objects: the uid of the registration."""
_EVENTS_NAMESPACE: Final = "default"
"""Events of cluster-scoped objects are there."""
_VERIFIED_SECONDS: Final = 600.0
"""So long what was written is taken to be there."""
_TOKEN_LIFETIME: Final = timedelta(hours=72)
_RENEWED_AFTER: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class _KeptToken:
    token: Token
    issued_at: datetime
    renew_at: datetime


@dataclass(frozen=True, slots=True)
class _Written:
    """What was written for an mcm, and until when it is taken to be there."""

    account: Account
    until: float
    rights: tuple[tuple[Resource, Object], ...]


class McmIdentities:
    """Makes ServiceAccounts of dedicated mcm with their rights, which go by the uid of the registration.

    Call `load` before anything else. Rights end with their registration in any case, by its ownerReference.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._holders: set[str] = set()
        self._changed: set[str] = set()
        """Whose rights were changed since the last `load` began."""
        self._written: dict[str, _Written] = {}
        self._tokens: dict[Account, _KeptToken] = {}
        self._uids: dict[Account, str] = {}

    async def load(self) -> None:
        """Read who has rights."""
        self._changed.clear()
        roles = await self._client.list(CLUSTER_ROLES, label_selector=_UID_LABEL)
        listed = {item["metadata"]["labels"][_UID_LABEL] for item in roles.items}
        # What was changed while the list was on its way is known better here than in it.
        self._holders = (listed - self._changed) | (self._holders & self._changed)

    def holders(self) -> set[str]:
        """Return the uids of the registrations whose mcm has rights."""
        return set(self._holders)

    async def ensure(self, registration: ResourceModel, *, account: Account) -> None:
        """Have the ServiceAccount be there, and be the one that may follow the registration."""
        uid, now = registration.metadata.uid or "", time.monotonic()
        written = self._written.get(uid)
        if written is not None and written.account == account and now < written.until:
            return
        labels = {REGISTRATION_LABEL: label_value(registration.name)}
        # First, because a `remove` may run meanwhile, and what that takes away is to be written again.
        rights = tuple(_rights(registration, labels=labels, account=account))
        self._written[uid] = _Written(account, now + _VERIFIED_SECONDS, rights)
        try:
            await self._ensure_account(account, labels=labels)
            await self._ensure_rights(uid, rights)
        except BaseException:
            self._written.pop(uid, None)
            raise

    def see(self, event: Event) -> set[str]:
        """Take in a change of a ServiceAccount, role or binding; returns the registrations whose mcm lacks it now.

        They are returned by their uids. What the operator writes itself comes as it was written, and changes nothing.
        """
        if event.resource == SERVICE_ACCOUNTS:
            return self._lose(Account(*event.entry.key)) if event.kind == "DELETED" else set()
        broken = set()
        for uid in uids_of(event, label=_UID_LABEL):
            known = self._written.get(uid)
            if known is None:
                continue
            place = event.resource, event.entry.key
            body = next((body for kind, body in known.rights if (kind, key_of(body)) == place), None)
            if body is not None and (event.kind == "DELETED" or not is_as_written(event.object, body)):
                del self._written[uid]
                broken.add(uid)
        return broken

    def _lose(self, account: Account) -> set[str]:
        # `remove` forgets an account before it deletes it.
        lost = {uid for uid, known in self._written.items() if known.account == account}
        for uid in lost:
            del self._written[uid]
        return lost

    async def _ensure_rights(self, uid: str, rights: tuple[tuple[Resource, Object], ...]) -> None:
        try:
            for resource, body in rights:
                await apply_rbac(self._client, resource, body)
        finally:
            # Also where the answer to a write was not heard; and not before, when a `load` may run meanwhile.
            self._holders.add(uid)
            self._changed.add(uid)

    async def _ensure_account(self, account: Account, *, labels: dict[str, str]) -> None:
        body = {"metadata": {**account._asdict(), "labels": labels}, "automountServiceAccountToken": False}
        uid = (await self._client.apply(SERVICE_ACCOUNTS, body, force=True))["metadata"]["uid"]
        if self._uids.get(account) != uid:
            # Tokens of a deleted ServiceAccount are worthless.
            self._tokens.pop(account, None)
        self._uids[account] = uid

    async def token(self, account: Account) -> str:
        """Return a token of the ServiceAccount that is good for hours. Raises BootstrapFailed where none is given."""
        now = datetime.now(UTC)
        known = self._tokens.get(account)
        # A token that was issued after the present time has a clock behind it that was ahead.
        if known is None or not known.issued_at <= now < known.renew_at:
            token = await request_token(
                self._client, service_account=account.name, lifetime=_TOKEN_LIFETIME, namespace=account.namespace
            )
            renew_at = now + (token.expires_at - now) * _RENEWED_AFTER
            known = self._tokens[account] = _KeptToken(token, issued_at=now, renew_at=renew_at)
        return known.token.value

    def renewed_in(self, account: Account) -> float:
        """Return in how many seconds the last `token` of the ServiceAccount is to be renewed; 0: it was removed."""
        known = self._tokens.get(account)
        now = datetime.now(UTC)
        return (known.renew_at - now).total_seconds() if known is not None and known.issued_at <= now else 0.0

    async def revoke(self, uid: str) -> None:
        """Take the rights of the mcm of the registration with this uid back, where it has any."""
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
        """Forget the ServiceAccounts in a namespace that was deleted, so that they are written again."""
        self._written = {uid: known for uid, known in self._written.items() if known.account.namespace != namespace}

    async def remove(self, account: Account) -> None:
        """Have there be no such ServiceAccount; the tokens of one that was there are worthless."""
        self._tokens.pop(account, None)
        self._uids.pop(account, None)
        self._written = {uid: known for uid, known in self._written.items() if known.account != account}
        with contextlib.suppress(NotFound):
            await self._client.delete(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)


def _rights(
    registration: ResourceModel, *, labels: dict[str, str], account: Account
) -> Iterator[tuple[Resource, Object]]:
    """Describe what gives an mcm its rights, in the order in which it is made."""
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
