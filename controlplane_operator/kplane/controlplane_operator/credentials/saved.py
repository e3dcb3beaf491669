"""Keeps the keys of a control plane in the operator's namespace while the control plane's own namespace is gone.

The Secret has a token too. A namespace that the operator made anew carries the token, and so the operator knows it
again, also after a crash.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    NAMESPACE_TOKEN_ANNOTATION,
    UID_ANNOTATION,
    label_value,
    saved_keys_name,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["SavedKeys", "token_of"]

_TOKEN_BYTES: Final = 24


class SavedKeys:
    """Writes, finds and deletes that Secret. It is there only from the loss of a namespace to the end of its repair."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def find(self, control_plane: ControlPlane) -> Object | None:
        """Return the Secret; None where there is none.

        It is watched, and only this operator writes it. So what is known is what there is.
        """
        return self._context.stores.secrets.get((self._context.namespace, _name(control_plane)))

    async def save(self, control_plane: ControlPlane, *, data: Mapping[str, str] | None = None) -> Object:
        """Have the Secret exist, with this data as in the Secret of the keys; without data, with what it has."""
        found = self.find(control_plane)
        if found is not None and (data is None or found.get("data") == dict(data)):
            return found
        token = token_of(found) if found is not None else None
        metadata = {
            "name": _name(control_plane),
            "namespace": self._context.namespace,
            "labels": {CONTROL_PLANE_LABEL: label_value(control_plane.name)},
            "annotations": {
                UID_ANNOTATION: control_plane.metadata.uid,
                NAMESPACE_TOKEN_ANNOTATION: token or secrets.token_urlsafe(_TOKEN_BYTES),
            },
        }
        body = {"metadata": metadata, "type": "Opaque", "data": dict(data or {})}
        written = await self._context.client.apply(SECRETS, body, force=True)
        self._context.stores.secrets.apply(written)
        return written

    async def forget(self, control_plane: ControlPlane) -> None:
        """Delete the Secret, where there is one."""
        found = self.find(control_plane)
        if found is None:
            return
        with contextlib.suppress(NotFound):
            await self._context.client.delete(
                SECRETS, found["metadata"]["name"], namespace=self._context.namespace, uid=found["metadata"]["uid"]
            )
        self._context.stores.secrets.remove(found)


def token_of(obj: Object) -> str | None:
    """Return the token that a Secret or a namespace carries."""
    token: str | None = (obj["metadata"].get("annotations") or {}).get(NAMESPACE_TOKEN_ANNOTATION)
    return token


def _name(control_plane: ControlPlane) -> str:
    return saved_keys_name(control_plane.metadata.uid or "")
