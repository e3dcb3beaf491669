"""Holds the writes of a control plane at the gateway, where they wait, and lets them continue.

The gateway takes the wish from an annotation of its Secret, and each replica confirms in its Lease: see
docs/reference/gateway-contract.md.
A hold ends by itself, much later than any migration needs it: if the operator dies, writes wait for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import (
    GATEWAY_LEASE_LABEL,
    HOLDS_ANNOTATION,
    WRITES_HELD_UNTIL_ANNOTATION,
    gateway_secret_name,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import NotFound
from kplane.provider.client.resources import LEASES, SECRETS

__all__ = ["Holds"]

_LONGEST: Final = timedelta(seconds=45)
_POLL_SECONDS: Final = 0.02


class Holds:
    """Asks the gateway of one management cluster for holds."""

    def __init__(self, context: OperatorContext, gateway: Gateway) -> None:
        self._context = context
        self._gateway = gateway

    async def begin(self, control_plane: ControlPlane) -> None:
        """Have the writes of a control plane wait; returns when none is in flight at any replica.

        Raises what the client raises; the caller sets the time.
        """
        asked = (datetime.now(UTC) + _LONGEST).isoformat()
        await self._annotate(control_plane, asked)
        uid = control_plane.metadata.uid or ""
        while True:
            if await self._is_confirmed(uid, asked=asked):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def end(self, control_plane: ControlPlane) -> None:
        """Let the writes continue where the gateway's Secret says. It may be repeated."""
        with contextlib.suppress(NotFound):
            await self._annotate(control_plane, None)

    async def are_over(self, control_plane: ControlPlane) -> bool:
        """Tell whether no gateway holds writes any more: then all lead to where the Secret says."""
        secret = self._context.stores.secrets.get((self._gateway.namespace, gateway_secret_name(control_plane.name)))
        annotations = (secret["metadata"].get("annotations") or {}) if secret is not None else {}
        if WRITES_HELD_UNTIL_ANNOTATION in annotations:
            return False
        uid, leases = control_plane.metadata.uid, await self._leases()
        return bool(leases) and all(uid not in _holds(lease) for lease in leases)

    async def _annotate(self, control_plane: ControlPlane, value: str | None) -> None:
        body = {"metadata": {"annotations": {WRITES_HELD_UNTIL_ANNOTATION: value}}}
        name, namespace = gateway_secret_name(control_plane.name), self._gateway.namespace
        self._context.stores.secrets.apply(await self._context.client.patch(SECRETS, name, body, namespace=namespace))

    async def _is_confirmed(self, uid: str, *, asked: str) -> bool:
        leases = await self._leases()
        return bool(leases) and all(_holds(lease).get(uid) == asked for lease in leases)

    async def _leases(self) -> list[Object]:
        """Return those of the replicas that are there. If none is, Envoy may still lead to where it did.

        What one with an expired Lease lets pass, the fence in etcd refuses.
        """
        found = await self._context.client.list(
            LEASES, namespace=self._gateway.namespace, label_selector=GATEWAY_LEASE_LABEL
        )
        return [lease for lease in found.items if not _is_expired(lease)]


def _is_expired(lease: Object) -> bool:
    spec = lease.get("spec") or {}
    renewed = spec.get("renewTime")
    if renewed is None:
        return True
    return datetime.fromisoformat(renewed) + timedelta(seconds=spec.get("leaseDurationSeconds", 0)) < datetime.now(UTC)


def _holds(lease: Object) -> dict[str, str]:
    return dict(json.loads((lease["metadata"].get("annotations") or {}).get(HOLDS_ANNOTATION, "{}")))
