"""Reads what each replica of the gateway confirms in its Lease: holds in force, and how far it serves routes."""

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

__all__ = ["Replica", "RouteConfirmation", "list_replicas"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_PASS_SECONDS: Final = 2.0
"""Maximum time that one pass waits for replicas. A worker does nothing else meanwhile."""
_DEADLINE: Final = timedelta(seconds=10)
"""Replicas that are behind for longer keep no control plane from being Ready, if another replica serves it."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the gateway that is there: its Lease has not expired."""

    name: str
    holds: Mapping[str, str]
    """By uid of a control plane, the hold that is in force."""
    in_flight: Mapping[str, Mapping[str, Any]]
    """By uid of a control plane whose writes it cannot hold yet, the changes in flight."""
    served: Mapping[str, int] | None
    """By kind, the resourceVersion up to which it serves what objects say. None: it starts, or does not tell."""

    def serves(self, wanted: Mapping[str, int]) -> bool:
        """Tell whether it serves what objects of these resourceVersions say."""
        served = self.served or {}
        return all(served.get(kind, 0) >= version for kind, version in wanted.items())


async def list_replicas(context: OperatorContext, gateway: Gateway) -> list[Replica]:
    """Return the replicas that are there. Raises what the client raises.

    Without any, Envoy may still serve what it did. Whatever a replica with an expired Lease lets pass, the fence in
    etcd refuses.
    """
    found = await context.client.list(LEASES, namespace=gateway.namespace, label_selector=GATEWAY_LEASE_LABEL)
    return [_replica(lease) for lease in found.items if not _is_expired(lease)]


def _replica(lease: Object) -> Replica:
    annotations = lease["metadata"].get("annotations") or {}
    holds: dict[str, str] = json.loads(annotations.get(HOLDS_ANNOTATION, "{}"))
    served: dict[str, Any] | None = json.loads(annotations.get(SERVED_ANNOTATION, "null"))
    versions = {kind: int(version) for kind, version in served.items()} if served is not None else None
    in_flight: dict[str, Any] = json.loads(annotations.get(IN_FLIGHT_ANNOTATION, "{}"))
    return Replica(lease["metadata"]["name"], holds, in_flight, versions)


def _is_expired(lease: Object) -> bool:
    spec = lease.get("spec") or {}
    renewed = spec.get("renewTime")
    if renewed is None:
        return True
    time, now = datetime.fromisoformat(renewed), datetime.now(UTC)
    lasts = timedelta(seconds=spec.get("leaseDurationSeconds", 0))
    # A replica that ended while its clock was ahead would count as long as the clock was ahead.
    return time + lasts < now or is_future(time - lasts, now=now)


@dataclass(slots=True)
class _Wait:
    secret_version: int
    began: float


class RouteConfirmation:
    """Waits until each replica of the gateway serves the route of a control plane.

    Waiters share what was read of the Leases, so that many control planes at once cost no more than a few.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._confirmed: dict[str, int] = {}
        """By uid, the resourceVersion of the gateway's Secret that all replicas served."""
        self._waits: dict[str, _Wait] = {}
        self._behind: dict[str, dict[str, int]] = {}
        """Replicas that missed a deadline, with the resourceVersions that they did not serve. Until they do, no other
        control plane waits for them."""
        self._reading = asyncio.Lock()
        self._replicas: list[Replica] = []
        self._read_at = 0.0

    def forget(self, uid: str) -> None:
        """Forget the control plane with this uid."""
        self._confirmed.pop(uid, None)
        self._waits.pop(uid, None)

    async def wait(self, control_plane: ControlPlane, *, is_new: bool) -> str:
        """Return when each replica that is there serves what the Secret of the control plane says.

        `is_new` says that clients may rely on something from now on that replicas do not know yet. Otherwise it does
        not wait. Returns in a sentence which replicas are behind for long, if others are not. Without replicas there is
        nothing to wait for. Raises ConditionError (RoutePending, GatewayBehind) if the control plane has to wait
        longer, and what the client raises.
        """
        wanted = self._wanted(control_plane)
        uid = control_plane.metadata.uid or ""
        if not wanted:
            return ""
        if not is_new or self._confirmed.get(uid) == wanted["secrets"]:
            return self._said((await self._look(wanted))[0], wanted) if self._behind else ""
        wait = self._waits.get(uid)
        if wait is None or wait.secret_version != wanted["secrets"]:
            wait = self._waits[uid] = _Wait(wanted["secrets"], time.monotonic())
        replicas, behind = await self._look(wanted)
        pass_ends = time.monotonic() + _PASS_SECONDS
        while behind and time.monotonic() < pass_ends:
            await asyncio.sleep(_POLL_SECONDS)
            replicas, behind = await self._look(wanted)
        if not behind:
            self.forget(uid)
            self._confirmed[uid] = wanted["secrets"]
            return self._said(replicas, wanted)
        return self._behind_for_long(replicas, behind, wanted=wanted, since=wait.began)

    def _wanted(self, control_plane: ControlPlane) -> dict[str, int]:
        """Return by kind the resourceVersion that replicas have to serve; nothing if the gateway does not serve it."""
        if (gateway := self._context.gateway) is None:
            return {}
        secret = self._context.stores.secrets.get((gateway.namespace, gateway_secret_name(control_plane.name)))
        if secret is None:
            return {}
        wanted = {"secrets": int(secret["metadata"]["resourceVersion"])}
        if control_plane.status.endpoint is None and control_plane.metadata.resource_version is not None:
            # A route is made of both, and replicas may not know the control plane itself yet.
            wanted["controlplanes"] = int(control_plane.metadata.resource_version)
        return wanted

    async def _look(self, wanted: Mapping[str, int]) -> tuple[list[Replica], list[Replica]]:
        """Return the replicas that tell what they serve, and which of them have to be waited for."""
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
        """Return which replicas are behind if the control plane waits for them no longer. Raises ConditionError."""
        waited, names = timedelta(seconds=time.monotonic() - since), ", ".join(each.name for each in behind)
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
        names = [each.name for each in replicas if each.name in self._behind and not each.serves(wanted)]
        if not names:
            return ""
        seconds = _DEADLINE.total_seconds()
        return f"these replicas of the gateway do not serve it for {seconds:.0f} s, see their logs: {', '.join(names)}"
