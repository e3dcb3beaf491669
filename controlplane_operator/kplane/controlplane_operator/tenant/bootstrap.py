"""What every control plane has inside: system namespaces, the administrator's identity, the controllers' identity.

Everything goes through the tenant's own API by server-side apply, so that a repeated call writes nothing and drift is
mended.
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
"""Where kplane's ServiceAccounts are, in each control plane."""

JOIN_ADDON: Final = "kubeadm-join"
"""The add-on that nodes join with; its bootstrap tokens are credentials like the others."""

REVISION: Final = "2"
"""Another one with each change of what `bootstrap` makes: templates that lack the change are made again."""

_SYSTEM_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease", TENANT_NAMESPACE)
_NAMES_AT_MOST: Final = 50
_TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
_FIELD_MANAGER: Final = "kplane-bootstrap"
ADMIN_BINDING: Final = "controlplane-admin"
CONTROLLERS_BINDING: Final = "controlplane-controllers"
CONTROLLERS_ROLE: Final = "cluster-admin"
"""Garbage collection and namespace deletion need every resource that the tenant may add."""
MANAGED_LABELS: Final = {"app.kubernetes.io/managed-by": "kplane"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a binding is for: a ServiceAccount in `TENANT_NAMESPACE`, or a user known by client certificate."""

    kind: Literal["ServiceAccount", "User"]
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A ClusterRoleBinding that gives one subject one ClusterRole."""

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
        """Tell whether a stored object gives the subject this role. The answer is a tenant's, and may be anything."""
        if not isinstance(stored, dict):
            return False
        wanted, subjects = self.body(), stored.get("subjects")
        has_subject = isinstance(subjects, list) and wanted["subjects"][0] in subjects
        return has_subject and stored.get("roleRef") == wanted["roleRef"]


ADMIN_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-admin")
CONTROLLERS_ACCOUNT: Final = Subject("ServiceAccount", "controlplane-controllers")


def administrator(uid: str, *, by_certificate: bool) -> Subject:
    """Return who the published kubeconfig is for, in the control plane with this uid.

    The user has the uid in its name, because a certificate cannot be revoked. A user of an earlier control plane, whose
    data and CAs this one adopted, is another user then.
    """
    return Subject("User", f"kplane:admin:{uid}") if by_certificate else ADMIN_ACCOUNT


def admin_binding(admin: Subject, *, role: str) -> Binding:
    """Return what gives the administrator its role in every namespace."""
    return Binding(ADMIN_BINDING, role, admin)


def controllers_binding(controllers: Subject) -> Binding:
    """Return what allows the controllers everything."""
    return Binding(CONTROLLERS_BINDING, CONTROLLERS_ROLE, controllers)


def managed_labels(owner: str | None) -> dict[str, str]:
    """Return the labels of accounts and bindings; `owner` is the uid of the control plane, if they are to name it."""
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
    """Have everything in place; `client` is an administrator of the control plane.

    Accounts and bindings carry `owner`, the uid of the control plane. `admin` gets the ClusterRole `admin_role` in
    every namespace, `controllers` may do everything. Raises RoleMissing if that ClusterRole does not exist, with all
    else in place, and the errors of `client`. A control plane whose credentials are `published` keeps the
    administrator's former role in that case: a typo in a class must not take the access of each control plane that
    names it. Before publication the former binding is removed, because it can be of an earlier control plane whose
    data this one adopted.
    """
    labels = managed_labels(owner)
    named = await _first_namespaces(client)
    # One after the other over one connection, because four more would cost more than they save.
    for name in _SYSTEM_NAMESPACES:
        if name not in named and not await client.exists(NAMESPACES, name):
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES, {"metadata": {"name": name}})
    for subject in (admin, controllers):
        if subject.kind == "ServiceAccount":
            await _apply_account(client, subject.name, labels=labels)
    # First of the bindings: the controllers serve the tenant whatever is wrong with the administrator's role.
    await _bind(client, controllers_binding(controllers), labels=labels)
    if not await client.exists(CLUSTER_ROLES, admin_role):
        former = await _former_role(client)
        if former is not None and published:
            # The subject changes with auth.model, and its new credential must work as the former one did.
            await _bind(client, admin_binding(admin, role=former), labels=labels)
        elif former != admin_role:
            with contextlib.suppress(NotFound):
                await client.delete(CLUSTER_ROLE_BINDINGS, ADMIN_BINDING)
        kept = f"; the administrator keeps ClusterRole {former} until then" if published and former else ""
        raise RoleMissing(
            f"ClusterRole {admin_role} does not exist in the control plane; create it there, or correct"
            f" spec.auth.defaultRole of its class{kept if former != admin_role else ''}"
        )
    await _bind(client, admin_binding(admin, role=admin_role), labels=labels)


async def _first_namespaces(client: Client) -> set[str]:
    """Return names of namespaces: the first of a list, usually all that are needed, by one small answer.

    A table has no objects: how many namespaces the tenant has besides, and what is written on them, is its own affair.
    """
    try:
        table = await client.request(
            "GET", NAMESPACES.path(), params={"limit": _NAMES_AT_MOST, "includeObject": "None"}, accept=_TABLE
        )
        return {row["cells"][0] for row in table["rows"]}
    except (Forbidden, LookupError, TypeError):
        return set()  # a server without tables, or one that refuses to list, is asked for each name


async def _former_role(client: Client) -> str | None:
    """Return the ClusterRole that the administrator's binding gives; None without a binding."""
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
