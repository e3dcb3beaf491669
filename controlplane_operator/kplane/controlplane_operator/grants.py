"""RBAC of multicluster controller managers: each may read exactly the Secrets of its registrations."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.api.names import GROUP, REGISTRATION_LABEL, label_value
from kplane.controlplane_operator.kinds import owner_reference
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.provider import AlreadyExists, Cache, Client, Informer, Invalid, NotFound, Resource
from kplane.provider.client.resources import ROLE_BINDINGS, ROLES

__all__ = [
    "GRANT_UID_LABEL",
    "RBAC",
    "Access",
    "Account",
    "RegistrationRbac",
    "apply_rbac",
    "create_rbac",
    "is_as_written",
]

GRANT_UID_LABEL: Final = f"{GROUP}/registration-uid"
"""Label of the Roles and RoleBindings by which mcm may read a Secret; its value is the uid of the registration."""
RBAC: Final = "rbac.authorization.k8s.io"
_CONTENT: Final = ("rules", "roleRef", "subjects", "automountServiceAccountToken")
"""Fields of a role, binding or ServiceAccount that the operator writes, besides the metadata."""


class Account(NamedTuple):
    """ServiceAccount."""

    namespace: str
    name: str

    def subject(self) -> dict[str, Any]:
        """Return the subject of a binding to this ServiceAccount."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


class RegistrationRbac:
    """RBAC objects of registrations, which have the uid of their registration in a label.

    Existing objects are read from the cache of the management cluster, which also gets the operator's own writes.
    """

    def __init__(self, client: Client, cache: Cache, *, label: str, kinds: Sequence[Resource]) -> None:
        """`label` is the label with the uid. `kinds` are in the order of deletion: bindings before their roles."""
        self._client = client
        self._cache = cache
        self._label = label
        self._kinds = kinds
        for kind in kinds:
            cache.index_field(kind, label, self._uids)

    async def holders(self) -> set[str]:
        """Return the uids of all registrations that have objects."""
        informers = [await self._informer(kind) for kind in self._kinds]
        labels = [entry.labels for informer in informers for entry in informer.entries()]
        return {values[self._label] for values in labels if self._label in values}

    async def is_holder(self, uid: str) -> bool:
        """Return whether the registration with this uid has objects."""
        return any([(await self._informer(kind)).entries(field={self._label: uid}) for kind in self._kinds])

    async def ensure(self, resource: Resource, body: Object) -> Object:
        """Create or update an object. Skips the write if the object in the cache has the content of `body`."""
        metadata = body["metadata"]
        existing = (await self._informer(resource)).get(metadata["name"], namespace=metadata.get("namespace"))
        if existing is None:
            return await create_rbac(self._client, resource, body)
        if is_as_written(existing, body):
            return existing
        return await apply_rbac(self._client, resource, body)

    async def delete(self, uid: str, *, keep: Key | None = None) -> None:
        """Delete the objects of the registration with this uid, except those with the key `keep`."""
        for kind in self._kinds:
            for entry in (await self._informer(kind)).entries(field={self._label: uid}):
                if entry.key != keep:
                    with contextlib.suppress(NotFound):
                        await self._client.delete(kind, entry.name, namespace=entry.namespace or None)

    async def _informer(self, kind: Resource) -> Informer:
        informer = self._cache.informer(kind)
        await informer.wait_synced(unless_refused=True)
        return informer

    def _uids(self, body: Object) -> list[str]:
        uid = (body["metadata"].get("labels") or {}).get(self._label)
        return [uid] if uid is not None else []


class Access:
    """Grants a ServiceAccount `get` and `watch` on single Secrets.

    Each registration has a Role and a RoleBinding for each of its Secrets.
    """

    def __init__(self, client: Client, cache: Cache, *, shared: Account) -> None:
        """Create the manager; `shared` is the ServiceAccount for registrations without an mcm of their own."""
        self.shared: Final = shared
        self._rbac = RegistrationRbac(client, cache, label=GRANT_UID_LABEL, kinds=(ROLE_BINDINGS, ROLES))

    async def holders(self) -> set[str]:
        """Return the uids of the registrations that have a grant."""
        return await self._rbac.holders()

    async def grant(self, registration: ControlPlaneRegistration, *, secret: SecretReference, to: Account) -> None:
        """Let this ServiceAccount, and no other, read the Secret for this registration."""
        uid = registration.metadata.uid or ""
        namespace, name = _key(uid, secret)
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {REGISTRATION_LABEL: label_value(registration.name), GRANT_UID_LABEL: uid},
            "ownerReferences": [owner_reference(registration)],
        }
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret.name], "verbs": ["get", "watch"]}
        role = {"apiGroup": RBAC, "kind": "Role", "name": name}
        await self._rbac.ensure(ROLES, {"metadata": metadata, "rules": [rule]})
        await self._rbac.ensure(ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": [to.subject()]})

    async def revoke(self, uid: str, *, keep: SecretReference | None = None) -> None:
        """Revoke the grants of the registration with this uid, except that for `keep`. The registration may be gone."""
        await self._rbac.delete(uid, keep=_key(uid, keep) if keep is not None else None)


def _key(uid: str, secret: SecretReference) -> Key:
    """Return the namespace and name of the Role and RoleBinding by which a registration reads a Secret."""
    digest = hashlib.sha256(f"{uid}/{secret.namespace}/{secret.name}".encode()).hexdigest()
    return secret.namespace, f"kplane-registration-{digest[:16]}"


async def create_rbac(client: Client, resource: Resource, body: Object) -> Object:
    """Create a role or binding, or apply it if it exists; return the object.

    Create first: nearly all are new, and for the API server a create costs a third of an apply.
    """
    try:
        return await client.create(resource, body)
    except AlreadyExists:
        return await apply_rbac(client, resource, body)


async def apply_rbac(client: Client, resource: Resource, body: Object, *, field_manager: str | None = None) -> Object:
    """Apply a role or binding, and return it. A binding of another role is replaced: its roleRef is immutable."""
    try:
        return await client.apply(resource, body, field_manager=field_manager, force=True)
    except Invalid:
        if "roleRef" not in body:
            raise
        metadata = body["metadata"]
        with contextlib.suppress(NotFound):
            await client.delete(resource, metadata["name"], namespace=metadata.get("namespace"))
        return await client.apply(resource, body, field_manager=field_manager, force=True)


def is_as_written(found: Object, written: Object) -> bool:
    """Return whether a role, binding or ServiceAccount has the content of the written one, besides other metadata."""
    metadata, expected = found["metadata"], written["metadata"]
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
    return (
        all(found.get(part) == written.get(part) for part in _CONTENT)
        and all(labels.get(name) == value for name, value in expected.get("labels", {}).items())
        and all(owner in owners for owner in expected.get("ownerReferences", ()))
    )
