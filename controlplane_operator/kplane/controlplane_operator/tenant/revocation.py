"""Revocation of the identities that `bootstrap` created in a control plane. Each call may be repeated."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from kplane.api.names import ADDON_LABEL, CONTROL_PLANE_UID_LABEL
from kplane.controlplane_operator.grants import RBAC
from kplane.controlplane_operator.status.errors import tenant_error
from kplane.controlplane_operator.tenant.admission import tenant_errors
from kplane.controlplane_operator.tenant.bootstrap import (
    ADMIN_ACCOUNT,
    ADMIN_BINDING,
    CONTROLLERS_ACCOUNT,
    CONTROLLERS_BINDING,
    JOIN_ADDON,
    TENANT_NAMESPACE,
    Subject,
    managed_labels,
)
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, ROLES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden

__all__ = ["revoke", "revoke_as_controllers", "revoke_issued"]

_TAKING_BACK: Final = "taking back what was issued in the control plane"
_JOIN_NAMESPACE: Final = "kube-system"
_FIELD_MANAGER: Final = "kplane-bootstrap"
_LAST_RIGHT: Final = "controlplane-revocation"
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.1
"""Pause between attempts. An API server observes granted and removed rights by its own watches, with some delay."""


async def revoke(client: Client, *, owner: str | None = None) -> None:
    """Invalidate the tokens and certificates of both identities. `client` is an administrator.

    With `owner`, the uid of a control plane, identities with the uid of another control plane are not changed. Raises
    the errors of `client`.
    """
    foreign = await _foreign(client, owner=owner) if owner is not None else frozenset[str]()
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        if account.name not in foreign:
            await _unbind(client, account.name)
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        if account.name not in foreign:
            await _end(client, account)
    if CONTROLLERS_ACCOUNT.name not in foreign:
        # Last, because after this step no identity can create another token.
        await _end_join_tokens(client)
        for resource in (ROLE_BINDINGS, ROLES):
            with contextlib.suppress(NotFound):
                await client.delete(resource, _LAST_RIGHT, namespace=TENANT_NAMESPACE)


async def revoke_as_controllers(client: Client, *, owner: str | None = None) -> None:
    """Invalidate both identities with the controllers' own identity as `client`. Its rights and its account go last.

    It is not enough to remove the rights of the account: if the next control plane that adopts the API server binds the
    account again, its old tokens would be valid again. So the account first gets the right to delete itself, and then
    loses all others. Only this right remains, which lets an account of this name delete itself.

    Raises Forbidden if the account lacks the rights that `bootstrap` gave it, and Unauthorized if its token is refused,
    as after a complete revocation.
    """
    # Forbidden means that an earlier call has removed the rights, so only the account remains to be deleted.
    with contextlib.suppress(Forbidden):
        foreign = await _foreign(client, owner=owner) if owner is not None else frozenset[str]()
        if ADMIN_ACCOUNT.name not in foreign:
            await _unbind(client, ADMIN_BINDING)
            await _end(client, ADMIN_ACCOUNT)
        if CONTROLLERS_ACCOUNT.name in foreign:
            return
        await _end_join_tokens(client)
        await _grant_last_right(client, owner=owner)
        await _unbind(client, CONTROLLERS_BINDING)
    for left in reversed(range(_TRIES)):
        try:
            await _end(client, CONTROLLERS_ACCOUNT)
        except Forbidden:
            if not left:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


async def _foreign(client: Client, *, owner: str) -> frozenset[str]:
    """Return the names of identities whose account or binding has the uid of another control plane.

    Accounts without a uid were created by earlier versions of kplane, which wrote no uid.
    """
    foreign = set[str]()
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        for resource, namespace in ((SERVICE_ACCOUNTS, TENANT_NAMESPACE), (CLUSTER_ROLE_BINDINGS, None)):
            with contextlib.suppress(NotFound):
                existing = await client.get(resource, account.name, namespace=namespace)
                labels = existing["metadata"].get("labels") or {}
                if labels.get(CONTROL_PLANE_UID_LABEL, owner) != owner:
                    foreign.add(account.name)
    return frozenset(foreign)


async def _unbind(client: Client, binding: str) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(CLUSTER_ROLE_BINDINGS, binding)


async def _end(client: Client, account: Subject) -> None:
    with contextlib.suppress(NotFound):
        await client.delete(SERVICE_ACCOUNTS, account.name, namespace=TENANT_NAMESPACE)


async def _end_join_tokens(client: Client) -> None:
    """Delete the join tokens in a single call, because users who may write Secrets may have created too many."""
    await client.delete_all(SECRETS, namespace=_JOIN_NAMESPACE, label_selector=f"{ADDON_LABEL}={JOIN_ADDON}")


async def _grant_last_right(client: Client, *, owner: str | None) -> None:
    metadata = {"name": _LAST_RIGHT, "namespace": TENANT_NAMESPACE, "labels": managed_labels(owner)}
    rule: dict[str, Any] = {
        "apiGroups": [""],
        "resources": ["serviceaccounts"],
        "resourceNames": [CONTROLLERS_ACCOUNT.name],
        "verbs": ["delete"],
    }
    subject = {"kind": "ServiceAccount", "name": CONTROLLERS_ACCOUNT.name, "namespace": TENANT_NAMESPACE}
    role_ref = {"apiGroup": RBAC, "kind": "Role", "name": _LAST_RIGHT}
    await client.apply(ROLES, {"metadata": metadata, "rules": [rule]}, field_manager=_FIELD_MANAGER, force=True)
    binding = {"metadata": metadata, "roleRef": role_ref, "subjects": [subject]}
    await client.apply(ROLE_BINDINGS, binding, field_manager=_FIELD_MANAGER, force=True)


async def revoke_issued(administrator: ClusterConfig) -> None:
    """Invalidate all issued credentials of a control plane. Raises ConditionError if it is unreachable."""
    try:
        async with tenant_client(administrator) as client, tenant_errors(client, _TAKING_BACK):
            await revoke(client)
    except ProviderError as error:
        raise tenant_error(_TAKING_BACK, error) from error
