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
        self._changed: set[str] = set()
        """Whose grants were changed since the last `load` began."""

    async def load(self) -> None:
        """Read the grants that exist."""
        self._changed.clear()
        granted: dict[str, set[Key]] = {}
        bound = {key_of(item) for item in (await self._client.list(ROLE_BINDINGS, label_selector=_UID_LABEL)).items}
        for item in (await self._client.list(ROLES, label_selector=_UID_LABEL)).items:
            if key_of(item) in bound:
                granted.setdefault(item["metadata"]["labels"][_UID_LABEL], set()).add(key_of(item))
        # What was changed while the lists were on their way is known better here than in them.
        untouched = {uid: keys for uid, keys in granted.items() if uid not in self._changed}
        self._granted = untouched | {uid: keys for uid, keys in self._granted.items() if uid in self._changed}

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
        self._changed.add(uid)

    async def revoke(self, uid: str, *, keep: SecretReference | None = None) -> None:
        """Take back the grants of the registration with this uid, which may be gone; all but the one to keep."""
        kept = _key(uid, keep) if keep is not None else None
        for key in self._granted.get(uid, set()) - {kept}:
            for resource in (ROLE_BINDINGS, ROLES):
                try:
                    await self._client.delete(resource, key[1], namespace=key[0])
                except NotFound:
                    continue
            self._forget(uid, key)

    def _forget(self, uid: str, key: Key) -> None:
        # Whoever revokes the same at the same time, or loads, may have been here first.
        held = self._granted.get(uid, set())
        held.discard(key)
        if not held:
            self._granted.pop(uid, None)
        self._changed.add(uid)

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
