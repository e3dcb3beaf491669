"""Identities of dedicated mcm in the management cluster, with rights to a single registration and its status.

`Access` grants the Secret that the registration resolves to, as for the shared mcm.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kplane.api import ResourceModel
from kplane.api.names import GROUP, REGISTRATION_LABEL, label_value
from kplane.controlplane_operator.grants import RBAC, Account, RegistrationRbac
from kplane.controlplane_operator.kinds import owner_reference
from kplane.controlplane_operator.tenant.tokens import Token, request_token
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import Cache, Client, NotFound, Resource
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)

__all__ = ["IDENTITY_UID_LABEL", "McmIdentities"]

IDENTITY_UID_LABEL: Final = f"{GROUP}/dedicated-uid"
"""Label with the uid of the registration, on the ServiceAccount and RBAC objects of a dedicated mcm."""
_EVENTS_NAMESPACE: Final = "default"
"""Namespace of the Events of cluster-scoped objects."""
_TOKEN_LIFETIME: Final = timedelta(hours=72)
_RENEWED_AFTER: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class _KeptToken:
    token: Token
    issued_at: datetime
    renew_at: datetime


class McmIdentities:
    """ServiceAccounts of dedicated mcm and their rights, which are labelled with the uid of the registration.

    The rights end with their registration in any case, through the ownerReference.
    """

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._rbac = RegistrationRbac(
            client,
            cache,
            label=IDENTITY_UID_LABEL,
            kinds=(CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, ROLES, CLUSTER_ROLES),
        )
        self._tokens: dict[Account, _KeptToken] = {}
        self._uids: dict[Account, str] = {}

    async def holders(self) -> set[str]:
        """Return the uids of the registrations whose mcm has rights."""
        return await self._rbac.holders()

    async def is_holder(self, uid: str) -> bool:
        """Return whether the mcm of the registration with this uid has rights."""
        return await self._rbac.is_holder(uid)

    async def ensure(self, registration: ResourceModel, *, account: Account) -> None:
        """Create or update the ServiceAccount and its rights to follow the registration, if they differ."""
        uid = registration.metadata.uid or ""
        labels = {REGISTRATION_LABEL: label_value(registration.name), IDENTITY_UID_LABEL: uid}
        body = {"metadata": {**account._asdict(), "labels": labels}, "automountServiceAccountToken": False}
        account_uid = (await self._rbac.ensure(SERVICE_ACCOUNTS, body))["metadata"]["uid"]
        if self._uids.get(account) != account_uid:
            # The tokens of a deleted ServiceAccount are invalid.
            self._tokens.pop(account, None)
        self._uids[account] = account_uid
        for resource, right in _rights(registration, labels=labels, account=account):
            await self._rbac.ensure(resource, right)

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
        await self._rbac.delete(uid)

    async def remove(self, account: Account) -> None:
        """Delete the ServiceAccount, which invalidates its tokens."""
        self._tokens.pop(account, None)
        self._uids.pop(account, None)
        with contextlib.suppress(NotFound):
            await self._client.delete(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)


def _rights(
    registration: ResourceModel, *, labels: dict[str, str], account: Account
) -> Iterator[tuple[Resource, Object]]:
    """Yield the RBAC objects of an mcm, in the order of their creation."""
    uid = registration.metadata.uid or ""
    metadata = {
        "name": _name(uid),
        "labels": labels,
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
