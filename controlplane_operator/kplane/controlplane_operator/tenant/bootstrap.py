"""Objects inside each control plane: system namespaces, the administrator's identity, and the controllers' identity.

All objects are written through the tenant's own API by server-side apply. A repeated call writes only to
correct drift.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kplane.api.names import CONTROL_PLANE_UID_LABEL
from kplane.controlplane_operator.errors import RoleMissing
from kplane.controlplane_operator.grants import RBAC, apply_rbac
from kplane.provider import AlreadyExists, Client, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden

__all__ = [
    "ADMIN_ACCOUNT",
    "ADMIN_BINDING",
    "CONTROLLERS_ACCOUNT",
    "CONTROLLERS_BINDING",
    "CONTROLLERS_ROLE",
    "JOIN_ADDON",
    "MANAGED_LABELS",
    "REVISION",
    "TENANT_NAMESPACE",
    "Binding",
    "Subject",
    "admin_binding",
    "administrator",
    "bootstrap",
    "controllers_binding",
    "managed_labels",
]

TENANT_NAMESPACE: Final = "kplane-system"
"""Namespace of kplane's ServiceAccounts in each control plane."""

JOIN_ADDON: Final = "kubeadm-join"
"""Add-on for joining nodes. Its bootstrap tokens are credentials, and are revoked like the others."""

REVISION: Final = "2"
"""Revision of the objects of `bootstrap`. Change it with the objects: templates of another revision are made again."""

_SYSTEM_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease", TENANT_NAMESPACE)
_NAMES_AT_MOST: Final = 50
_TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
_FIELD_MANAGER: Final = "kplane-bootstrap"
ADMIN_BINDING: Final = "controlplane-admin"
CONTROLLERS_BINDING: Final = "controlplane-controllers"
CONTROLLERS_ROLE: Final = "cluster-admin"
"""ClusterRole of the controllers: garbage collection and namespace deletion need each resource that the tenant may add.
"""
MANAGED_LABELS: Final = {"app.kubernetes.io/managed-by": "kplane"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a binding: a ServiceAccount in `TENANT_NAMESPACE`, or the user of a client certificate."""

    kind: Literal["ServiceAccount", "User"]
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """ClusterRoleBinding of a ClusterRole to a subject."""

    name: str
    role: str
    subject: Subject

    def body(self, labels: Mapping[str, str] = MANAGED_LABELS) -> dict[str, Any]:
        """Return the object to apply."""
        subject_ref: dict[str, Any] = {"kind": self.subject.kind, "name": self.subject.name}
        if self.subject.kind == "ServiceAccount":
            subject_ref["namespace"] = TENANT_NAMESPACE
        else:
            subject_ref["apiGroup"] = RBAC
        return {
            "metadata": {"name": self.name, "labels": dict(labels)},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": self.role},
            "subjects": [subject_ref],
        }

    def is_in(self, stored: Any) -> bool:
        """Return whether a stored object binds the subject to this role.

        The object comes from a tenant and may be any JSON.
        """
        if not isinstance(stored, dict):
            return False
        desired, subjects = self.body(), stored.get("subjects")
        has_subject = isinstance(subjects, list) and desired["subjects"][0] in subjects
        return has_subject and stored.get("roleRef") == desired["roleRef"]


ADMIN_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-admin")
CONTROLLERS_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-controllers")


def administrator(uid: str, *, by_certificate: bool) -> Subject:
    """Return the subject of the published kubeconfig, in the control plane with this uid.

    The user name contains the uid, because a certificate cannot be revoked. So the certificate of an earlier control
    plane, whose data and CAs this control plane adopted, belongs to another user.
    """
    return Subject("User", f"kplane:admin:{uid}") if by_certificate else ADMIN_ACCOUNT


def admin_binding(admin: Subject, *, role: str) -> Binding:
    """Return the binding of the administrator to its role in all namespaces."""
    return Binding(ADMIN_BINDING, role, admin)


def controllers_binding(controllers: Subject) -> Binding:
    """Return the binding of the controllers to all rights."""
    return Binding(CONTROLLERS_BINDING, CONTROLLERS_ROLE, controllers)


def managed_labels(owner: str | None) -> dict[str, str]:
    """Return the labels of accounts and bindings. `owner` is the uid of the control plane, or None to leave it out."""
    return MANAGED_LABELS if owner is None else {**MANAGED_LABELS, CONTROL_PLANE_UID_LABEL: owner}


async def bootstrap(
    client: Client,
    *,
    admin: Subject,
    admin_role: str,
    controllers: Subject,
    owner: str | None = None,
    published: bool = False,
) -> None:
    """Create or update all objects. `client` is an administrator of the control plane.

    Accounts and bindings have `owner`, the uid of the control plane, as a label. `admin` gets the ClusterRole
    `admin_role` in all namespaces, `controllers` get all rights. Raises RoleMissing if that ClusterRole does not exist,
    after all other objects are written, and the errors of `client`. If the credentials are `published`, the
    administrator keeps its former role in that case. A typo in a class must not remove the access to all its control
    planes. Before publication the former binding is removed, because it may belong to an earlier control plane whose
    data this control plane adopted.
    """
    labels = managed_labels(owner)
    existing = await _first_namespaces(client)
    # Sequential requests on one connection, because four more connections would cost more than they save.
    for name in _SYSTEM_NAMESPACES:
        if name not in existing and not await client.exists(NAMESPACES, name):
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES, {"metadata": {"name": name}})
    for subject in (admin, controllers):
        if subject.kind == "ServiceAccount":
            await _apply_account(client, subject.name, labels=labels)
    # The controllers are bound first, because they serve the tenant even if the administrator's role is missing.
    await _bind(client, controllers_binding(controllers), labels=labels)
    if not await client.exists(CLUSTER_ROLES, admin_role):
        former = await _former_role(client)
        if former is not None and published:
            # The subject changes with auth.model, and its new credential needs the role of the former subject.
            await _bind(client, admin_binding(admin, role=former), labels=labels)
        elif former != admin_role:
            with contextlib.suppress(NotFound):
                await client.delete(CLUSTER_ROLE_BINDINGS, ADMIN_BINDING)
        hint = f"; the administrator keeps ClusterRole {former} until then" if published and former else ""
        raise RoleMissing(
            f"ClusterRole {admin_role} does not exist in the control plane; create it there, or correct"
            f" spec.auth.defaultRole of its class{hint if former != admin_role else ''}"
        )
    await _bind(client, admin_binding(admin, role=admin_role), labels=labels)


async def _first_namespaces(client: Client) -> set[str]:
    """Return the names of the first namespaces in a list. A small answer usually contains all required names.

    The Table without objects keeps the answer small, however many namespaces the tenant has.
    """
    try:
        table = await client.request(
            "GET", NAMESPACES.path(), params={"limit": _NAMES_AT_MOST, "includeObject": "None"}, accept=_TABLE
        )
        return {row["cells"][0] for row in table["rows"]}
    except (Forbidden, LookupError, TypeError):
        return set()  # for a server without tables, or without the right to list, the caller checks each name


async def _former_role(client: Client) -> str | None:
    """Return the ClusterRole of the administrator's binding; None without a binding."""
    try:
        role_ref = (await client.get(CLUSTER_ROLE_BINDINGS, ADMIN_BINDING)).get("roleRef")
    except NotFound:
        return None
    name = role_ref.get("name") if isinstance(role_ref, dict) else None
    return name if isinstance(name, str) else None


async def _apply_account(client: Client, name: str, *, labels: dict[str, str]) -> None:
    body = {"metadata": {"name": name, "namespace": TENANT_NAMESPACE, "labels": labels}}
    await client.apply(SERVICE_ACCOUNTS, body, field_manager=_FIELD_MANAGER, force=True)


async def _bind(client: Client, binding: Binding, *, labels: dict[str, str]) -> None:
    await apply_rbac(client, CLUSTER_ROLE_BINDINGS, binding.body(labels), field_manager=_FIELD_MANAGER)
