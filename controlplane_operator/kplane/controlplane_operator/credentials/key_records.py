"""Records of the keys of a control plane: fingerprints in the metadata of its namespace, apart from the keys.

A Secret from an old backup has other keys, which are valid too. With these keys, data that the former key encrypted are
unreadable, and tokens that the former key signed are refused. So the operator compares keys with the record before each
use.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Self

from kplane.api import ControlPlane
from kplane.api.names import KEY_FINGERPRINTS_ANNOTATION, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.fingerprints import Fingerprints
from kplane.provider.client.resources import NAMESPACES

__all__ = ["KeyRecord", "KeyRecords", "settled_fingerprints"]

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")
_MAX_ENTRIES: Final = 16
"""Maximum number of entries, as in status.keyFingerprints, to which a record is copied.

The API server would refuse a whole status with more entries.
"""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Keys that a control plane may have."""

    states: tuple[Fingerprints, ...]
    """Fingerprints of the Secret: one state, or the states before and after the write of a step of a rotation."""

    @classmethod
    def of(cls, namespace: Object) -> Self | None:
        """Return the record of a namespace; None if there is none, or a user made it unreadable."""
        text = (namespace["metadata"].get("annotations") or {}).get(KEY_FINGERPRINTS_ANNOTATION)
        try:
            states: Any = json.loads(text) if text else []
        except ValueError:
            return None
        if not isinstance(states, list) or not states or not all(map(_is_state, states)):
            return None
        return cls(tuple(states))

    def annotation(self) -> str:
        """Return the value of the annotation."""
        return json.dumps(self.states, separators=(",", ":"), sort_keys=True)

    def allows(self, fingerprints: Fingerprints) -> bool:
        """Return whether the control plane may have keys with these fingerprints."""
        return fingerprints in self.states

    def differing(self, fingerprints: Fingerprints) -> list[str]:
        """Return the names of entries that differ from the record; if it has two states, from the nearest state."""
        differing = (
            sorted(name for name in state.keys() | fingerprints.keys() if state.get(name) != fingerprints.get(name))
            for state in self.states
        )
        return min(differing, key=len)


def settled_fingerprints(namespace: Object) -> dict[str, str]:
    """Return the fingerprints of the keys of the namespace's control plane, if its record has a single state.

    Without a record, and between the two writes of a step of a rotation, the result is empty.
    """
    record = KeyRecord.of(namespace)
    return dict(record.states[0]) if record is not None and len(record.states) == 1 else {}


class KeyRecords:
    """Reads and writes the records of control planes that kplane runs."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    async def find(self, control_plane: ControlPlane) -> KeyRecord | None:
        """Return the record; None if there is none yet, or a user removed it."""
        return KeyRecord.of(await self._namespace(control_plane))

    def is_known(self, control_plane: ControlPlane) -> bool:
        """Return whether the cached namespace has a record."""
        namespace = self._context.stores.namespaces.get(("", management_namespace(control_plane.name)))
        return namespace is not None and KeyRecord.of(namespace) is not None

    async def write(self, control_plane: ControlPlane, record: KeyRecord | None) -> None:
        """Record these keys; None removes the record. Raises Conflict if the namespace has changed meanwhile."""
        namespace = await self._namespace(control_plane)
        if KeyRecord.of(namespace) == record:
            return
        annotations = {KEY_FINGERPRINTS_ANNOTATION: record.annotation() if record is not None else None}
        metadata = namespace["metadata"]
        body = {"metadata": {"annotations": annotations, "resourceVersion": metadata["resourceVersion"]}}
        await self._context.client.patch(NAMESPACES, metadata["name"], body)

    async def refresh(self, control_plane: ControlPlane) -> None:
        """Read the namespace from the API server into the cache, which may be stale."""
        namespace = await self._context.client.get(NAMESPACES, management_namespace(control_plane.name))
        self._context.stores.namespaces.apply(namespace)

    async def _namespace(self, control_plane: ControlPlane) -> Object:
        name = management_namespace(control_plane.name)
        cached: Object | None = self._context.stores.namespaces.get(("", name))
        return cached if cached is not None else await self._context.client.get(NAMESPACES, name)


def _is_state(state: Any) -> bool:
    return (
        isinstance(state, dict)
        and len(state) <= _MAX_ENTRIES
        and all(isinstance(value, str) and _FINGERPRINT.fullmatch(value) for value in state.values())
    )
