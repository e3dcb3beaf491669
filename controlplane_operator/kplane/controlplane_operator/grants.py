"""Lets multicluster controller managers read exactly the Secrets that their registrations resolve to."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.api.names import GROUP, REGISTRATION_LABEL, label_value
from kplane.controlplane_operator.kinds import owner_reference
from kplane.controlplane_operator.watch.cache import Key, key_of
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import ROLE_BINDINGS, ROLES

__all__ = ["Access", "Account"]

_UID_LABEL: Final = f"{GROUP}/registration-uid"


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    def subject(self) -> dict[str, Any]:
        """Return it as a binding names it."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


class Access:
    """Grants a ServiceAccount `get` and `watch` on single Secrets: a Role and RoleBinding a registration and Secret.

    Call `load` before anything else; from then on it knows what is granted, and writes only what changes.
    """

    def __init__(self, client: Client, *, shared: Account) -> None:
        """`shared` is who serves registrations that have no mcm of their own."""
        self.shared: Final = shared
        self._client = client
        self._granted: dict[str, dict[Key, Account | None]] = {}
        """By the uid of the registration: to whom; None where a binding is not as we write it."""
        self._changed: set[str] = set()
        """Whose grants were changed since the last `load` began."""

    async def load(self) -> None:
        """Read the grants that exist."""
        self._changed.clear()
        granted: dict[str, dict[Key, Account | None]] = {}
        bindings = (await self._client.list(ROLE_BINDINGS, label_selector=_UID_LABEL)).items
        bound = {key_of(item): _bound(item) for item in bindings}
        for item in (await self._client.list(ROLES, label_selector=_UID_LABEL)).items:
            if (key := key_of(item)) in bound:
                granted.setdefault(item["metadata"]["labels"][_UID_LABEL], {})[key] = bound[key]
        # What was changed while the lists were on their way is known better here than in them.
        untouched = {uid: keys for uid, keys in granted.items() if uid not in self._changed}
        self._granted = untouched | {uid: keys for uid, keys in self._granted.items() if uid in self._changed}

    def holders(self) -> set[str]:
        """Return the uids of the registrations that have a grant."""
        return set(self._granted)

    async def grant(self, registration: ControlPlaneRegistration, *, secret: SecretReference, to: Account) -> None:
        """Let the ServiceAccount, and no other, read the Secret, for this registration."""
        uid = registration.metadata.uid or ""
        key = _key(uid, secret)
        if self._granted.get(uid, {}).get(key) == to:
            return
        metadata = {
            "name": key[1],
            "namespace": key[0],
            "labels": {REGISTRATION_LABEL: label_value(registration.name), _UID_LABEL: uid},
            "ownerReferences": [owner_reference(registration)],
        }
        rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret.name], "verbs": ["get", "watch"]}
        await self._client.apply(ROLES, {"metadata": metadata, "rules": [rule]})
        await self._client.apply(ROLE_BINDINGS, _binding(metadata, to=to))
        self._granted.setdefault(uid, {})[key] = to
        self._changed.add(uid)

    async def revoke(self, uid: str, *, keep: SecretReference | None = None) -> None:
        """Revoke the grants of the registration with this uid, which may be gone; all but the one to keep."""
        kept = _key(uid, keep) if keep is not None else None
        for key in self._granted.get(uid, {}).keys() - {kept}:
            for resource in (ROLE_BINDINGS, ROLES):
                try:
                    await self._client.delete(resource, key[1], namespace=key[0])
                except NotFound:
                    continue
            self._forget(uid, key)

    def forget(self, namespace: str) -> None:
        """Forget the grants in a namespace that was deleted, so that they are written again."""
        for uid, held in list(self._granted.items()):
            for key in [key for key in held if key[0] == namespace]:
                self._forget(uid, key)

    def _forget(self, uid: str, key: Key) -> None:
        # A concurrent revoke or load may have been here first.
        held = self._granted.get(uid, {})
        held.pop(key, None)
        if not held:
            self._granted.pop(uid, None)
        self._changed.add(uid)


def _binding(metadata: dict[str, Any], *, to: Account) -> dict[str, Any]:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    return {"metadata": metadata, "roleRef": role, "subjects": [to.subject()]}


def _bound(binding: dict[str, Any]) -> Account | None:
    subjects = binding.get("subjects") or []
    if len(subjects) != 1 or subjects[0].get("kind") != "ServiceAccount":
        return None
    return Account(subjects[0].get("namespace", ""), subjects[0].get("name", ""))


def _key(uid: str, secret: SecretReference) -> Key:
    digest = hashlib.sha256(f"{uid}/{secret.namespace}/{secret.name}".encode()).hexdigest()
    return secret.namespace, f"kplane-registration-{digest[:16]}"
