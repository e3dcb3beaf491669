"""Revokes, in a control plane, the identities that `bootstrap` made there. Every call may be repeated."""

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
"""An API server sees what was granted and taken by watches of its own, some milliseconds later."""


async def revoke(client: Client, *, owner: str | None = None) -> None:
    """Have the tokens and certificates of both identities be worth nothing; `client` is an administrator.

    With `owner`, the uid of a control plane, an identity that carries the uid of another control plane stays. Raises
    what `client` raises.
    """
    foreign = await _foreign(client, owner=owner) if owner is not None else frozenset[str]()
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        if account.name not in foreign:
            await _unbind(client, account.name)
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        if account.name not in foreign:
            await _end(client, account)
    if CONTROLLERS_ACCOUNT.name not in foreign:
        # Last: no identity can make another token any more.
        await _end_join_tokens(client)
        for resource in (ROLE_BINDINGS, ROLES):
            with contextlib.suppress(NotFound):
                await client.delete(resource, _LAST_RIGHT, namespace=TENANT_NAMESPACE)


async def revoke_as_controllers(client: Client, *, owner: str | None = None) -> None:
    """The same, where `client` is the controllers' own identity: it goes last, and its rights before it.

    An account without rights would not do: bound again by whoever adopts the API server next, its old tokens were good
    again. So the one right to delete that account is granted to it before all others are taken. What is left is that
    right, which lets an account of this name delete itself.

    Raises Forbidden where it has not the rights that `bootstrap` gave it, Unauthorized where its token is refused, as
    it is once all of this was done.
    """
    # Where an earlier call got so far that the rights are gone, only the account is left.
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
    """Name the identities whose account or binding carries the uid of another control plane.

    Accounts without a uid are those of earlier versions of kplane, which wrote none.
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
    """Delete them in one call: who may write Secrets may have made more of them than could be listed."""
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
    """Have what was issued in a control plane be worth nothing; raises ConditionError where it cannot be reached."""
    try:
        async with tenant_client(administrator) as client, tenant_errors(client, _TAKING_BACK):
            await revoke(client)
    except ProviderError as error:
        raise tenant_error(_TAKING_BACK, error) from error
