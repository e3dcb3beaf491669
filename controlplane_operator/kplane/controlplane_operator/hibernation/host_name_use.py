"""Counts the use of control planes with host names: the gateway sees their connections, and no requests.

A connection shows no use, because anybody can make one. So the operator asks the API server how many requests of users
it has executed (`tenant/flow_schemas.py`), and writes annotation `last-used` when that number has changed. In doubt, a
control plane is in use: so it is after the first look of an operator that starts anew.
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
"""Minimum age of the last use at a look. So the annotation is written once in this time at most."""
_TRIES_PER_REPLICA: Final = 8
"""Connections until the operator gives up to reach each API server. A Service leads to any of them."""


class UseUnknown(OperatorError):
    """It cannot be found out whether users send requests; the message says why."""


def is_counted(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, gateway: Gateway | None) -> bool:
    """Tell whether the operator counts the use of a control plane: it has a host name, and may sleep."""
    if host_name(gateway, control_plane, chosen=chosen) is None:
        return False
    return start_of(control_plane, chosen=chosen, gateway=gateway) is StartPolicy.ON_DEMAND


class HostNameUse:
    """Compares what API servers have counted with what they had counted at the last look."""

    def __init__(self, context: OperatorContext, *, replicas: int = 1) -> None:
        """`replicas` API servers run for each control plane."""
        self._context = context
        self._replicas = replicas
        self._counts: dict[str, dict[str, int]] = {}
        """By uid of the control plane, then by address of the API server."""

    def forget(self, uid: str) -> None:
        """Forget the counts of a control plane that sleeps, or is gone: its next API server counts from zero."""
        self._counts.pop(uid, None)

    async def observe(self, control_plane: ControlPlane) -> datetime | None:
        """Return the last use of a control plane, after a look and a report; None: it was never used.

        Raises UseUnknown, and ProviderError if the use cannot be written.
        """
        now = datetime.now(UTC)
        known = self._reported(control_plane, now=now)
        if known is not None and now - known < _LOOKS_APART:
            return known
        uid = control_plane.metadata.uid or ""
        before, counts = self._counts.get(uid, {}), await self._count(control_plane)
        if all(count == before.get(address, 0) for address, count in counts.items()):
            # A report of a look beside this one may have come meanwhile.
            return self._reported(control_plane, now=now)
        await self._report(control_plane, now)
        # After the report: one that fails is repeated at the next look.
        self._counts[uid] = counts
        return now

    def _reported(self, control_plane: ControlPlane, *, now: datetime) -> datetime | None:
        """Return the last use by the newest known state of a control plane, which a pass may have read long ago."""
        stored = self._context.stores.control_planes.get(("", control_plane.name))
        newest = as_recorded(stored) if stored is not None else control_plane
        return Requests.of(newest, start=StartPolicy.ON_DEMAND, now=now).used

    async def _report(self, control_plane: ControlPlane, at: datetime) -> None:
        body = {"metadata": {"uid": control_plane.metadata.uid, "annotations": {LAST_USED_ANNOTATION: at.isoformat()}}}
        try:
            stored = await self._context.client.patch(CONTROL_PLANES, control_plane.name, body)
        except (NotFound, Invalid):
            return  # it is gone, or has a successor
        # The next pass must not decide by the use before this one.
        self._context.stores.control_planes.apply(stored)

    async def _count(self, control_plane: ControlPlane) -> dict[str, int]:
        """Return the number of requests of users by API server, each of them known by its address."""
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
        # Both requests take one connection, so that one API server answers them.
        connections = self._context.connections if self._replicas == 1 else None
        async with tenant_client(config, connections=connections) as client:
            found = await client.request("GET", "/api")
            table = await client.text(PRIORITY_LEVELS)
        return str(found["serverAddressByClientCIDRs"][0]["serverAddress"]), count_user_requests(table)
