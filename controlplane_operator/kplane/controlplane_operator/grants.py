"""RBAC of multicluster controller managers: each may read exactly the Secrets of its registrations."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.api.names import GROUP, REGISTRATION_LABEL, label_value
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.watch.cache import Key, Object, key_of
from kplane.provider import AlreadyExists, Client, Event, Invalid, NotFound, Resource
from kplane.provider.client.resources import ROLE_BINDINGS, ROLES

__all__ = ["RBAC", "Access", "Account", "apply_rbac", "create_rbac", "is_as_written", "uids_of"]

_UID_LABEL: Final = f"{GROUP}/registration-uid"
"""Label of the Roles and RoleBindings by which mcm may read a Secret; its value is the uid of the registration."""
RBAC: Final = "rbac.authorization.k8s.io"


class Account(NamedTuple):
    """ServiceAccount."""

    namespace: str
    name: str

    def subject(self) -> dict[str, Any]:
        """Return the subject of a binding to this ServiceAccount."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


@dataclass(frozen=True, slots=True)
class _Grant:
    """Right of a registration to read a Secret, with the content of its Role and RoleBinding."""

    registration: str
    uid: str
    namespace: str
    secret: str
    to: Account

    @property
    def key(self) -> Key:
        """Namespace and name of the Role and RoleBinding."""
        digest = hashlib.sha256(f"{self.uid}/{self.namespace}/{self.secret}".encode()).hexdigest()
        return self.namespace, f"kplane-registration-{digest[:16]}"

    def body(self, resource: Resource) -> Object:
        """Return the Role or RoleBinding."""
        namespace, name = self.key
        kind = CONTROL_PLANE_REGISTRATIONS
        owner = {"apiVersion": kind.api_version, "kind": kind.kind, "name": self.registration, "uid": self.uid}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {REGISTRATION_LABEL: label_value(self.registration), _UID_LABEL: self.uid},
            "ownerReferences": [owner],
        }
        if resource == ROLES:
            named = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [self.secret]}
            return {"metadata": metadata, "rules": [{**named, "verbs": ["get", "watch"]}]}
        role = {"apiGroup": RBAC, "kind": "Role", "name": name}
        return {"metadata": metadata, "roleRef": role, "subjects": [self.to.subject()]}


class Access:
    """Grants a ServiceAccount `get` and `watch` on single Secrets.

    Each registration has a Role and a RoleBinding for each of its Secrets.

    Call `load` first. From then on, the existing grants are in memory, and only changes are written.
    """

    def __init__(self, client: Client, *, shared: Account) -> None:
        """Create the manager; `shared` is the ServiceAccount for registrations without an mcm of their own."""
        self.shared: Final = shared
        self._client = client
        self._granted: dict[str, dict[Key, _Grant | None]] = {}
        """Grants by the uid of the registration; None if Role and RoleBinding differ from the operator's version."""
        self._changed: set[str] = set()
        """Uids whose grants were changed since the last `load` began."""

    async def load(self) -> None:
        """Read the existing grants."""
        self._changed.clear()
        granted: dict[str, dict[Key, _Grant | None]] = {}
        bindings = (await self._client.list(ROLE_BINDINGS, label_selector=_UID_LABEL)).items
        bound = {key_of(item): item for item in bindings}
        for item in (await self._client.list(ROLES, label_selector=_UID_LABEL)).items:
            if (key := key_of(item)) in bound:
                granted.setdefault(item["metadata"]["labels"][_UID_LABEL], {})[key] = _read(item, bound[key])
        # Grants that changed during the lists are newer in memory than in the lists.
        untouched = {uid: keys for uid, keys in granted.items() if uid not in self._changed}
        self._granted = untouched | {uid: keys for uid, keys in self._granted.items() if uid in self._changed}

    def holders(self) -> set[str]:
        """Return the uids of the registrations that have a grant."""
        return set(self._granted)

    def see(self, event: Event) -> set[str]:
        """Process a change of a Role or RoleBinding; return the uids of registrations that need a new grant.

        A write of the operator equals its grant in memory, and so changes nothing.
        """
        broken = set()
        for uid in uids_of(event, label=_UID_LABEL):
            held = self._granted.get(uid, {})
            grant = held.get(event.entry.key)
            if grant is None:
                continue
            if event.kind == "DELETED" or not is_as_written(event.object, grant.body(event.resource)):
                # None until the next grant or revocation, because one of the two objects may be left.
                held[event.entry.key] = None
                self._changed.add(uid)
                broken.add(uid)
        return broken

    async def grant(self, registration: ControlPlaneRegistration, *, secret: SecretReference, to: Account) -> None:
        """Let this ServiceAccount, and no other, read the Secret for this registration."""
        uid = registration.metadata.uid or ""
        grant = _Grant(registration.name, uid, secret.namespace, secret.name, to)
        if self._granted.get(uid, {}).get(grant.key) == grant:
            return
        await create_rbac(self._client, ROLES, grant.body(ROLES))
        await create_rbac(self._client, ROLE_BINDINGS, grant.body(ROLE_BINDINGS))
        self._granted.setdefault(uid, {})[grant.key] = grant
        self._changed.add(uid)

    async def revoke(self, uid: str, *, keep: SecretReference | None = None) -> None:
        """Revoke the grants of the registration with this uid, except that for `keep`. The registration may be gone."""
        kept_key = _Grant("", uid, keep.namespace, keep.name, self.shared).key if keep is not None else None
        for key in self._granted.get(uid, {}).keys() - {kept_key}:
            if key in (held := self._granted.get(uid, {})):
                held[key] = None  # so that `see` ignores the operator's own deletions
            for resource in (ROLE_BINDINGS, ROLES):
                try:
                    await self._client.delete(resource, key[1], namespace=key[0])
                except NotFound:
                    continue
            self._forget(uid, key)

    def forget(self, namespace: str) -> None:
        """Discard the grants in a deleted namespace from memory, so that they are written again."""
        for uid, held in list(self._granted.items()):
            for key in [key for key in held if key[0] == namespace]:
                self._forget(uid, key)

    def _forget(self, uid: str, key: Key) -> None:
        # A concurrent revoke or load may have removed the grant already.
        held = self._granted.get(uid, {})
        held.pop(key, None)
        if not held:
            self._granted.pop(uid, None)
        self._changed.add(uid)


async def create_rbac(client: Client, resource: Resource, body: Object) -> None:
    """Create a role or binding, or apply it if it exists.

    Create first: nearly all are new, and for the API server a create costs a third of an apply.
    """
    try:
        await client.create(resource, body)
    except AlreadyExists:
        await apply_rbac(client, resource, body)


async def apply_rbac(client: Client, resource: Resource, body: Object, *, field_manager: str | None = None) -> None:
    """Apply a role or binding. A binding of another role is replaced, because its roleRef is immutable."""
    try:
        await client.apply(resource, body, field_manager=field_manager, force=True)
    except Invalid:
        if "roleRef" not in body:
            raise
        metadata = body["metadata"]
        with contextlib.suppress(NotFound):
            await client.delete(resource, metadata["name"], namespace=metadata.get("namespace"))
        await client.apply(resource, body, field_manager=field_manager, force=True)


def is_as_written(found: Object, written: Object) -> bool:
    """Return whether a Role or binding has the content of the written one; additional metadata are ignored."""
    metadata, expected = found["metadata"], written["metadata"]
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
    return (
        all(found.get(part) == written.get(part) for part in ("rules", "roleRef", "subjects"))
        and all(labels.get(name) == value for name, value in expected.get("labels", {}).items())
        and all(owner in owners for owner in expected.get("ownerReferences", ()))
    )


def uids_of(event: Event, *, label: str) -> set[str]:
    """Return the uids in a label of an object, before and after a change."""
    entries = (event.entry, event.old_entry)
    return {entry.labels[label] for entry in entries if entry is not None and label in entry.labels}


def _read(role: Object, binding: Object) -> _Grant | None:
    """Return the grant of a Role and RoleBinding; None if they differ from the operator's version."""
    try:
        metadata, (subject,), (rule,) = role["metadata"], binding["subjects"], role["rules"]
        (secret,), (owner,) = rule["resourceNames"], metadata["ownerReferences"]
        to = Account(subject["namespace"], subject["name"])
        grant = _Grant(owner["name"], metadata["labels"][_UID_LABEL], metadata["namespace"], secret, to)
    except (KeyError, TypeError, ValueError):
        return None
    whole = is_as_written(role, grant.body(ROLES)) and is_as_written(binding, grant.body(ROLE_BINDINGS))
    return grant if whole and grant.key == key_of(role) else None
