"""Write holds: the gateway delays the writes of a control plane until they are released.

The operator requests a hold with an annotation of the gateway's Secret, and each replica confirms it in its Lease. See
docs/reference/gateway-contract.md.
A hold expires by itself, much later than any migration needs it. If the operator dies, writes wait for its successor.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kplane.api import ControlPlane
from kplane.api.names import WRITES_HELD_UNTIL_ANNOTATION, gateway_secret_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.gateway_replicas import Replica, list_known_replicas, list_replicas
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["Holds"]

_LONGEST: Final = timedelta(seconds=45)
_POLL_SECONDS: Final = 0.02


class Holds:
    """Requests holds from the gateway of one management cluster."""

    def __init__(self, context: OperatorContext, gateway: Gateway) -> None:
        self._context = context
        self._gateway = gateway

    async def begin(self, control_plane: ControlPlane) -> None:
        """Hold the writes of a control plane; returns when no replica has a write in flight.

        Raises the errors of the client. The caller has to set a timeout.
        """
        expiry = (datetime.now(UTC) + _LONGEST).isoformat()
        await self._annotate(control_plane, expiry)
        uid = control_plane.metadata.uid or ""
        while True:
            if await self._is_confirmed(uid, asked=expiry):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def unconfirmed(self, control_plane: ControlPlane) -> list[Replica]:
        """Return the replicas without a hold in force, sorted by name. Raises the errors of the client."""
        uid, replicas = control_plane.metadata.uid, await list_replicas(self._context, self._gateway)
        unconfirmed = (replica for replica in replicas if uid not in replica.holds)
        return sorted(unconfirmed, key=lambda replica: replica.name)

    async def followed(self, control_plane: ControlPlane, *, seconds: float) -> bool:
        """Wait until every replica routes by the gateway's present Secret. Returns whether all do within `seconds`.

        A replica with an expired Lease does not count as routing by it, because its Envoy may serve its last
        configuration. Returns False if there is no Secret. Raises the errors of the client.
        """
        secret, deadline = self._secret(control_plane), time.monotonic() + seconds
        if secret is None:
            return False
        versions = {"secrets": int(secret["metadata"]["resourceVersion"])}
        while True:
            replicas = await list_known_replicas(self._context, self._gateway)
            if replicas and all(replica.serves(versions) and not replica.expired for replica in replicas):
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)

    def is_left(self, control_plane: ControlPlane) -> bool:
        """Return whether the Secret still requests a hold, such as after an operator was cut off."""
        return WRITES_HELD_UNTIL_ANNOTATION in self._annotations(control_plane)

    async def redirect(self, control_plane: ControlPlane) -> None:
        """Write the address of the status into the gateway's Secret, and keep the hold."""
        server = base64.b64encode((control_plane.status.endpoint or "").encode()).decode()
        if (self._secret(control_plane) or {}).get("data", {}).get("server") != server:
            await self._patch(control_plane, {"data": {"server": server}})

    async def end(self, control_plane: ControlPlane) -> None:
        """Release the hold. Writes continue at the address in the gateway's Secret. The call may be repeated."""
        with contextlib.suppress(NotFound):
            await self._annotate(control_plane, None)

    async def are_over(self, control_plane: ControlPlane) -> bool:
        """Return whether the hold is released at all replicas, so that all of them route by the Secret.

        Returns False if there is no replica.
        """
        if self.is_left(control_plane):
            return False
        uid, replicas = control_plane.metadata.uid, await list_replicas(self._context, self._gateway)
        return bool(replicas) and all(uid not in replica.holds for replica in replicas)

    def _secret(self, control_plane: ControlPlane) -> Object | None:
        return self._context.stores.secrets.get((self._gateway.namespace, gateway_secret_name(control_plane.name)))

    def _annotations(self, control_plane: ControlPlane) -> dict[str, str]:
        secret = self._secret(control_plane)
        return (secret["metadata"].get("annotations") or {}) if secret is not None else {}

    async def _annotate(self, control_plane: ControlPlane, value: str | None) -> None:
        await self._patch(control_plane, {"metadata": {"annotations": {WRITES_HELD_UNTIL_ANNOTATION: value}}})

    async def _patch(self, control_plane: ControlPlane, body: dict[str, Any]) -> None:
        name, namespace = gateway_secret_name(control_plane.name), self._gateway.namespace
        await self._context.client.patch(SECRETS, name, body, namespace=namespace)

    async def _is_confirmed(self, uid: str, *, asked: str) -> bool:
        replicas = await list_replicas(self._context, self._gateway)
        return bool(replicas) and all(replica.holds.get(uid) == asked for replica in replicas)
