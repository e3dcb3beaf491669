"""Copies of the keys of control planes in the operator's namespace, while the control plane's namespace is gone.

The Secret also has a token. The operator writes the token into the namespace that it recreates, and so recognizes that
namespace, even after a crash.
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
    """Writes, finds and deletes that Secret, which exists from the loss of a namespace to the end of its repair."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def find(self, control_plane: ControlPlane) -> Object | None:
        """Return the Secret; None if it does not exist.

        The cache is reliable, because it watches the Secret, and only this operator writes it.
        """
        return self._context.stores.secrets.get((self._context.namespace, _name(control_plane)))

    async def save(self, control_plane: ControlPlane, *, data: Mapping[str, str] | None = None) -> Object:
        """Create or update the Secret with this data; without `data`, keep the present data.

        The data have the encoding of a Secret. Skips the write if the data are equal. Returns the Secret.
        """
        existing = self.find(control_plane)
        if existing is not None and (data is None or existing.get("data") == dict(data)):
            return existing
        token = token_of(existing) if existing is not None else None
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
        return await self._context.client.apply(SECRETS, body, force=True)

    async def forget(self, control_plane: ControlPlane) -> None:
        """Delete the Secret if it exists."""
        existing = self.find(control_plane)
        if existing is None:
            return
        with contextlib.suppress(NotFound):
            await self._context.client.delete(
                SECRETS,
                existing["metadata"]["name"],
                namespace=self._context.namespace,
                uid=existing["metadata"]["uid"],
            )


def token_of(obj: Object) -> str | None:
    """Return the token of a Secret or namespace; None if it has none."""
    token: str | None = (obj["metadata"].get("annotations") or {}).get(NAMESPACE_TOKEN_ANNOTATION)
    return token


def _name(control_plane: ControlPlane) -> str:
    return saved_keys_name(control_plane.metadata.uid or "")
