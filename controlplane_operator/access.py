"""Lets the multicluster controller manager read exactly the Secrets that registrations resolve to."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from api import ControlPlaneRegistration, SecretReference
from api.names import GROUP, REGISTRATION_LABEL, label_value
from controlplane_operator.cache import Key, key_of
from controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS
from provider import ROLE_BINDINGS, ROLES, Client, NotFound

__all__ = ["Access"]

_UID_LABEL: Final = f"{GROUP}/registration-uid"


class Access:
    """Grants a ServiceAccount `get` and `watch` on single Secrets: a Role and RoleBinding a registration and Secret.

    Call `load` before anything else; from then on it knows what is granted, and writes only what changes.
    """

    def __init__(self, client: Client, *, service_account: str, service_account_namespace: str) -> None:
        self._client = client
        self._service_account = service_account
        self._service_account_namespace = service_account_namespace
        self._granted: dict[str, set[Key]] = {}

    async def load(self) -> None:
        """Read the grants that exist."""
        granted: dict[str, set[Key]] = {}
        bound = {key_of(item) for item in (await self._client.list(ROLE_BINDINGS, label_selector=_UID_LABEL)).items}
        for item in (await self._client.list(ROLES, label_selector=_UID_LABEL)).items:
            if key_of(item) in bound:
                granted.setdefault(item["metadata"]["labels"][_UID_LABEL], set()).add(key_of(item))
        self._granted = granted

    def holders(self) -> set[str]:
        """Return the uids of the registrations that have a grant."""
        return set(self._granted)

    async def grant(self, registration: ControlPlaneRegistration, *, secret: SecretReference) -> None:
        """Let the ServiceAccount read the Secret, for this registration."""
        uid = registration.metadata.uid or ""
        key = _key(uid, secret)
        if key in self._granted.get(uid, ()):
            return
        metadata = {
            "name": key[1],
            "namespace": key[0],
            "labels": {REGISTRATION_LABEL: label_value(registration.name), _UID_LABEL: uid},
            "ownerReferences": [
                {
                    "apiVersion": CONTROL_PLANE_REGISTRATIONS.api_version,
                    "kind": CONTROL_PLANE_REGISTRATIONS.kind,
                    "name": registration.name,
                    "uid": uid,
                }
            ],
        }
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret.name], "verbs": ["get", "watch"]}
        await self._client.apply(ROLES, {"metadata": metadata, "rules": [rule]})
        await self._client.apply(ROLE_BINDINGS, self._binding(metadata))
        self._granted.setdefault(uid, set()).add(key)

    async def revoke(self, uid: str, *, keep: SecretReference | None = None) -> None:
        """Take back the grants of the registration with this uid, which may be gone; all but the one to keep."""
        kept = _key(uid, keep) if keep is not None else None
        for key in self._granted.get(uid, set()) - {kept}:
            for resource in (ROLE_BINDINGS, ROLES):
                try:
                    await self._client.delete(resource, key[1], namespace=key[0])
                except NotFound:
                    continue
            self._granted[uid].discard(key)
        if not self._granted.get(uid):
            self._granted.pop(uid, None)

    def _binding(self, metadata: dict[str, Any]) -> dict[str, Any]:
        subject = {
            "kind": "ServiceAccount",
            "name": self._service_account,
            "namespace": self._service_account_namespace,
        }
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
        return {"metadata": metadata, "roleRef": role, "subjects": [subject]}


def _key(uid: str, secret: SecretReference) -> Key:
    digest = hashlib.sha256(f"{uid}/{secret.namespace}/{secret.name}".encode()).hexdigest()
    return secret.namespace, f"kplane-registration-{digest[:16]}"
