"""State of the gateway's replicas, read from their Leases: write holds in force, and the routes that they serve."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kplane.api import ControlPlane
from kplane.api.clocks import is_future
from kplane.api.names import (
    GATEWAY_LEASE_LABEL,
    HOLDS_ANNOTATION,
    IN_FLIGHT_ANNOTATION,
    SERVED_ANNOTATION,
    gateway_secret_name,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider.client.resources import LEASES

__all__ = ["Replica", "RouteConfirmation", "list_known_replicas", "list_replicas"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_PASS_SECONDS: Final = 2.0
"""Maximum time that one pass waits for replicas. The worker is blocked meanwhile."""
_DEADLINE: Final = timedelta(seconds=10)
"""Time after which a lagging replica no longer delays the condition Ready, if another replica serves the route."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the gateway, as its Lease describes it."""

    name: str
    holds: Mapping[str, str]
    """Write holds in force, by uid of the control plane."""
    in_flight: Mapping[str, Mapping[str, Any]]
    """Writes in flight, by uid of a control plane whose hold is not in force yet."""
    served: Mapping[str, int] | None
    """By kind, the resourceVersion up to which the replica serves objects. None while it starts, or if it does not
    report."""
    expired: bool = False
    """Whether the Lease has expired: the controller has stopped, but its Envoy may serve its last configuration."""

    def serves(self, wanted: Mapping[str, int]) -> bool:
        """Return whether the replica serves the state of objects at these resourceVersions."""
        served = self.served or {}
        return all(served.get(kind, 0) >= version for kind, version in wanted.items())


async def list_replicas(context: OperatorContext, gateway: Gateway) -> list[Replica]:
    """Return the live replicas of the gateway, whose Leases have not expired. Raises the errors of the client.

    The fence in etcd refuses writes that pass a replica with an expired Lease.
    """
    return [replica for replica in await list_known_replicas(context, gateway) if not replica.expired]


async def list_known_replicas(context: OperatorContext, gateway: Gateway) -> list[Replica]:
    """Return all replicas of the gateway, also those with an expired Lease. Raises the errors of the client."""
    leases = await context.client.list(LEASES, namespace=gateway.namespace, label_selector=GATEWAY_LEASE_LABEL)
    return [_replica(lease) for lease in leases.items]


def _replica(lease: Object) -> Replica:
    annotations = lease["metadata"].get("annotations") or {}
    holds: dict[str, str] = json.loads(annotations.get(HOLDS_ANNOTATION, "{}"))
    served: dict[str, Any] | None = json.loads(annotations.get(SERVED_ANNOTATION, "null"))
    versions = {kind: int(version) for kind, version in served.items()} if served is not None else None
    in_flight: dict[str, Any] = json.loads(annotations.get(IN_FLIGHT_ANNOTATION, "{}"))
    return Replica(lease["metadata"]["name"], holds, in_flight, versions, expired=_is_expired(lease))


def _is_expired(lease: Object) -> bool:
    spec = lease.get("spec") or {}
    renewed = spec.get("renewTime")
    if renewed is None:
        return True
    time, now = datetime.fromisoformat(renewed), datetime.now(UTC)
    lasts = timedelta(seconds=spec.get("leaseDurationSeconds", 0))
    # A Lease renewed by a clock that was ahead would otherwise seem valid for as long as that clock was ahead.
    return time + lasts < now or is_future(time - lasts, now=now)


@dataclass(slots=True)
class _Wait:
    secret_version: int
    began: float


class RouteConfirmation:
    """Waits until each replica of the gateway serves the route of a control plane.

    All waiters share one read of the Leases every 50 ms, so many control planes at once cost no more requests than a
    few.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._confirmed: dict[str, int] = {}
        """By uid, the resourceVersion of the gateway's Secret that all replicas have confirmed."""
        self._waits: dict[str, _Wait] = {}
        self._behind: dict[str, dict[str, int]] = {}
        """Replicas that missed the deadline, with the resourceVersions that they lack. No other control plane waits for
        such a replica until it serves them."""
        self._reading = asyncio.Lock()
        self._replicas: list[Replica] = []
        self._read_at = 0.0

    def forget(self, uid: str) -> None:
        """Discard the state of the control plane with this uid."""
        self._confirmed.pop(uid, None)
        self._waits.pop(uid, None)

    async def wait(self, control_plane: ControlPlane, *, is_new: bool) -> str:
        """Wait until each live replica serves the control plane's gateway Secret.

        `is_new` means that clients may use a route from now on that replicas may not serve yet. If `is_new` is False,
        the method does not wait. Returns a sentence that names the lagging replicas if other replicas serve the route,
        and otherwise an empty string. Without replicas there is no wait. Raises ConditionError (RoutePending,
        GatewayBehind) if the control plane has to wait longer, and the errors of the client.
        """
        versions = self._wanted(control_plane)
        uid = control_plane.metadata.uid or ""
        if not versions:
            return ""
        if not is_new or self._confirmed.get(uid) == versions["secrets"]:
            return self._said((await self._look(versions))[0], versions) if self._behind else ""
        wait = self._waits.get(uid)
        if wait is None or wait.secret_version != versions["secrets"]:
            wait = self._waits[uid] = _Wait(versions["secrets"], time.monotonic())
        replicas, behind = await self._look(versions)
        pass_ends = time.monotonic() + _PASS_SECONDS
        while behind and time.monotonic() < pass_ends:
            await asyncio.sleep(_POLL_SECONDS)
            replicas, behind = await self._look(versions)
        if not behind:
            self.forget(uid)
            self._confirmed[uid] = versions["secrets"]
            return self._said(replicas, versions)
        return self._behind_for_long(replicas, behind, wanted=versions, since=wait.began)

    def _wanted(self, control_plane: ControlPlane) -> dict[str, int]:
        """Return by kind the resourceVersion that replicas have to serve; empty if the gateway has no Secret for it."""
        if (gateway := self._context.gateway) is None:
            return {}
        secret = self._context.stores.secrets.get((gateway.namespace, gateway_secret_name(control_plane.name)))
        if secret is None:
            return {}
        versions = {"secrets": int(secret["metadata"]["resourceVersion"])}
        if control_plane.status.endpoint is None and control_plane.metadata.resource_version is not None:
            # A route consists of both objects, and a replica may not have seen a new control plane yet.
            versions["controlplanes"] = int(control_plane.metadata.resource_version)
        return versions

    async def _look(self, wanted: Mapping[str, int]) -> tuple[list[Replica], list[Replica]]:
        """Return the replicas that report their state, and the lagging replicas to wait for."""
        replicas = [replica for replica in await self._recent() if replica.served is not None]
        present = {replica.name: replica for replica in replicas}
        self._behind = {
            name: missed
            for name, missed in self._behind.items()
            if name in present and not present[name].serves(missed)
        }
        behind = [replica for replica in replicas if not replica.serves(wanted)]
        if len(behind) == len(replicas):
            return replicas, behind
        return replicas, [replica for replica in behind if replica.name not in self._behind]

    async def _recent(self) -> Sequence[Replica]:
        gateway = self._context.gateway
        if gateway is None:
            return ()
        async with self._reading:
            if time.monotonic() >= self._read_at + _POLL_SECONDS:
                self._replicas = await list_replicas(self._context, gateway)
                self._read_at = time.monotonic()
            return self._replicas

    def _behind_for_long(
        self, replicas: Sequence[Replica], behind: Sequence[Replica], *, wanted: Mapping[str, int], since: float
    ) -> str:
        """Return the sentence about lagging replicas if the deadline has passed.

        Raises ConditionError: RoutePending before the deadline, GatewayBehind if no replica serves the route.
        """
        waited, names = (
            timedelta(seconds=time.monotonic() - since),
            ", ".join(replica_behind.name for replica_behind in behind),
        )
        if waited < _DEADLINE:
            raise ConditionError(
                Reason.ROUTE_PENDING, f"waiting until each replica of the gateway serves it: {names} does not yet"
            )
        if len(behind) == len(replicas):
            raise ConditionError(
                Reason.GATEWAY_BEHIND,
                f"no replica of the gateway serves it {waited.total_seconds():.0f} s after it was told to: {names};"
                " see the log of the gateway",
            )
        for replica in behind:
            logger.warning("replica %s of the gateway serves no new control planes; see its log", replica.name)
            self._behind[replica.name] = dict(wanted)
        return self._said(replicas, wanted)

    def _said(self, replicas: Sequence[Replica], wanted: Mapping[str, int]) -> str:
        names = [replica.name for replica in replicas if replica.name in self._behind and not replica.serves(wanted)]
        if not names:
            return ""
        seconds = _DEADLINE.total_seconds()
        return f"these replicas of the gateway do not serve it for {seconds:.0f} s, see their logs: {', '.join(names)}"
