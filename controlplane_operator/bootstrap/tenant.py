"""What every control plane has inside: system namespaces, the administrator's identity, the controllers' identity.

Everything goes through the tenant's own API by server-side apply, so that a repeated call writes nothing and drift is
mended.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.names import ADDON_LABEL
from controlplane_operator.errors import RoleMissing
from provider import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    AlreadyExists,
    Client,
    Invalid,
    NotFound,
)

__all__ = [
    "ADMIN_ACCOUNT",
    "CONTROLLERS_ACCOUNT",
    "JOIN_ADDON",
    "TENANT_NAMESPACE",
    "Subject",
    "bootstrap",
    "revoke",
]

TENANT_NAMESPACE: Final = "kplane-system"
"""Where kplane's ServiceAccounts are, in each control plane."""

JOIN_ADDON: Final = "kubeadm-join"
"""The add-on that nodes join with; its bootstrap tokens are credentials like the others."""

_SYSTEM_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease", TENANT_NAMESPACE)
_JOIN_NAMESPACE: Final = "kube-system"
_FIELD_MANAGER: Final = "kplane-bootstrap"
_ADMIN_BINDING: Final = "controlplane-admin"
_CONTROLLERS_BINDING: Final = "controlplane-controllers"
_CONTROLLERS_ROLE: Final = "cluster-admin"
"""Garbage collection and namespace deletion need every resource that the tenant may add."""
_MANAGED: Final = {"app.kubernetes.io/managed-by": "kplane"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a binding is for: a ServiceAccount in `TENANT_NAMESPACE`, or a user known by client certificate."""

    kind: Literal["ServiceAccount", "User"]
    name: str


ADMIN_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-admin")
CONTROLLERS_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-controllers")


async def bootstrap(client: Client, *, admin: Subject, admin_role: str, controllers: Subject) -> None:
    """Have everything in place; `client` is an administrator of the control plane.

    `admin` gets the ClusterRole `admin_role` in every namespace, `controllers` may do everything. Raises
    RoleMissing where that ClusterRole does not exist, with all else in place and any former role taken away, and what
    `client` raises.
    """
    present = {item["metadata"]["name"] for item in (await client.list(NAMESPACES)).items}
    for name in _SYSTEM_NAMESPACES:
        if name not in present:
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES, {"metadata": {"name": name}})
    for subject in (admin, controllers):
        if subject.kind == "ServiceAccount":
            await _apply_account(client, subject.name)
    # First of the bindings: the controllers serve the tenant whatever is wrong with the administrator's role.
    await _bind(client, _CONTROLLERS_BINDING, role=_CONTROLLERS_ROLE, subject=controllers)
    try:
        await client.get(CLUSTER_ROLES, admin_role)
    except NotFound:
        await _unbind_former(client, role=admin_role)
        raise RoleMissing(
            f"ClusterRole {admin_role} does not exist in the control plane; create it there, or correct"
            " spec.auth.defaultRole of its class"
        ) from None
    await _bind(client, _ADMIN_BINDING, role=admin_role, subject=admin)


async def revoke(client: Client) -> None:
    """Take away the identities that `bootstrap` made: their tokens and certificates are worth nothing from then on."""
    for binding in (_ADMIN_BINDING, _CONTROLLERS_BINDING):
        with contextlib.suppress(NotFound):
            await client.delete(CLUSTER_ROLE_BINDINGS, binding)
    for account in (ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT):
        with contextlib.suppress(NotFound):
            await client.delete(SERVICE_ACCOUNTS, account.name, namespace=TENANT_NAMESPACE)
    # Last: whoever could make another token has no rights any more.
    tokens = await client.list(SECRETS, namespace=_JOIN_NAMESPACE, label_selector=f"{ADDON_LABEL}={JOIN_ADDON}")
    for token in tokens.items:
        with contextlib.suppress(NotFound):
            await client.delete(SECRETS, token["metadata"]["name"], namespace=_JOIN_NAMESPACE)


async def _unbind_former(client: Client, *, role: str) -> None:
    """Take the administrator's role away, unless it is this one: who wants another one wants the former one gone."""
    with contextlib.suppress(NotFound):
        known = await client.get(CLUSTER_ROLE_BINDINGS, _ADMIN_BINDING)
        if known["roleRef"]["name"] != role:
            await client.delete(CLUSTER_ROLE_BINDINGS, _ADMIN_BINDING)


async def _apply_account(client: Client, name: str) -> None:
    body = {"metadata": {"name": name, "namespace": TENANT_NAMESPACE, "labels": _MANAGED}}
    await client.apply(SERVICE_ACCOUNTS, body, field_manager=_FIELD_MANAGER)


async def _bind(client: Client, name: str, *, role: str, subject: Subject) -> None:
    subject_ref: dict[str, Any] = {"kind": subject.kind, "name": subject.name}
    if subject.kind == "ServiceAccount":
        subject_ref["namespace"] = TENANT_NAMESPACE
    else:
        subject_ref["apiGroup"] = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": name, "labels": _MANAGED},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject_ref],
    }
    try:
        await client.apply(CLUSTER_ROLE_BINDINGS, body, field_manager=_FIELD_MANAGER)
    except Invalid:
        # The role of a binding cannot be changed, only the binding replaced.
        with contextlib.suppress(NotFound):
            await client.delete(CLUSTER_ROLE_BINDINGS, name)
        await client.apply(CLUSTER_ROLE_BINDINGS, body, field_manager=_FIELD_MANAGER)
