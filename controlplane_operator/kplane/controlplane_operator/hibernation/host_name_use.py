"""Use of control planes with host names. The gateway sees only their connections, not their requests.

A connection proves no use, because anyone can open it. So the operator reads from the API server how many requests of
users it has executed (`tenant/flow_schemas.py`). If the number has changed, it writes annotation `last-used`. In doubt,
a control plane counts as in use, such as at the first check of a restarted operator.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, StartPolicy
from kplane.api.names import LAST_USED_ANNOTATION, controllers_secret_name, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import OperatorError
from kplane.controlplane_operator.gateway import Gateway, host_name
from kplane.controlplane_operator.hibernation.decision import start_of
from kplane.controlplane_operator.hibernation.requests import Requests
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.flow_schemas import PRIORITY_LEVELS, count_user_requests
from kplane.pki.kubeconfig import config_of
from kplane.provider import ClusterConfig, Invalid, NotFound, ProviderError

__all__ = ["IN_USE_AFTER_REQUEST", "HostNameUse", "UseUnknown", "is_counted"]

IN_USE_AFTER_REQUEST: Final = timedelta(minutes=11)
"""Time for which a control plane with a host name is in use after a request.

The request may be a watch. The API server counts a watch when it begins, and client-go renews it within ten minutes
(`minWatchTimeout` in its reflector.go).
"""
_LOOKS_APART: Final = timedelta(seconds=60)
"""Minimum age of the last recorded use at a check, so that the annotation is written at most once in this time."""
_TRIES_PER_REPLICA: Final = 8
"""Maximum number of connections per replica to reach each API server, because a Service leads to any of them."""


class UseUnknown(OperatorError):
    """The use by clients cannot be determined; the message has the reason."""


def is_counted(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, gateway: Gateway | None) -> bool:
    """Return whether the operator counts the use of a control plane: it has a host name and starts on demand."""
    if host_name(gateway, control_plane, chosen=chosen) is None:
        return False
    return start_of(control_plane, chosen=chosen, gateway=gateway) is StartPolicy.ON_DEMAND


class HostNameUse:
    """Compares the request counts of API servers with the counts at the previous check."""

    def __init__(self, context: OperatorContext, *, replicas: int = 1) -> None:
        """`replicas` is the number of API servers of each control plane."""
        self._context = context
        self._replicas = replicas
        self._counts: dict[str, dict[str, int]] = {}
        """Request counts by uid of the control plane, then by address of the API server."""

    def forget(self, uid: str) -> None:
        """Discard the counts of a control plane that sleeps or is gone. Its next API server counts from zero."""
        self._counts.pop(uid, None)

    async def observe(self, control_plane: ControlPlane) -> datetime | None:
        """Check and record the use of a control plane; returns the time of the last use, or None if there was none.

        Raises UseUnknown, and ProviderError if the use cannot be recorded.
        """
        now = datetime.now(UTC)
        recorded = self._reported(control_plane, now=now)
        if recorded is not None and now - recorded < _LOOKS_APART:
            return recorded
        uid = control_plane.metadata.uid or ""
        before, counts = self._counts.get(uid, {}), await self._count(control_plane)
        if all(count == before.get(address, 0) for address, count in counts.items()):
            # A concurrent check may have recorded a use meanwhile.
            return self._reported(control_plane, now=now)
        await self._report(control_plane, now)
        # The counts are kept after the report, so that the next check repeats a failed report.
        self._counts[uid] = counts
        return now

    def _reported(self, control_plane: ControlPlane, *, now: datetime) -> datetime | None:
        """Return the last use by the cached state, because the pass may have read the control plane long ago."""
        stored = self._context.stores.control_planes.get(("", control_plane.name))
        newest = as_recorded(stored) if stored is not None else control_plane
        return Requests.of(newest, start=StartPolicy.ON_DEMAND, now=now).used

    async def _report(self, control_plane: ControlPlane, at: datetime) -> None:
        body = {"metadata": {"uid": control_plane.metadata.uid, "annotations": {LAST_USED_ANNOTATION: at.isoformat()}}}
        try:
            await self._context.client.patch(CONTROL_PLANES, control_plane.name, body)
        except (NotFound, Invalid):
            return  # the control plane is gone, or has a successor

    async def _count(self, control_plane: ControlPlane) -> dict[str, int]:
        """Return the number of user requests by the address of each API server."""
        key = management_namespace(control_plane.name), controllers_secret_name(control_plane.name)
        config = config_of(self._context.stores.secrets.get(key))
        if config is None:
            raise UseUnknown("the operator has no credentials to ask its API server whether it is used")
        counts: dict[str, int] = {}
        try:
            for _ in range(_TRIES_PER_REPLICA * self._replicas):
                address, count = await self._ask(config)
                counts[address] = count
                if len(counts) >= self._replicas:
                    return counts
        except NotFound as error:
            raise UseUnknown(
                "its API server does not count requests of users, because its class switches API Priority and Fairness"
                " off"
            ) from error
        except (ProviderError, LookupError, TypeError, ValueError) as error:
            raise UseUnknown(f"the operator cannot find out whether it is used: {error}") from error
        raise UseUnknown(f"the operator reached {len(counts)} of {self._replicas} API servers to ask about its use")

    async def _ask(self, config: ClusterConfig) -> tuple[str, int]:
        # Both requests must use a single connection, so that the same API server answers them.
        connections = self._context.connections if self._replicas == 1 else None
        async with tenant_client(config, connections=connections) as client:
            versions = await client.request("GET", "/api")
            table = await client.text(PRIORITY_LEVELS)
        return str(versions["serverAddressByClientCIDRs"][0]["serverAddress"]), count_user_requests(table)
