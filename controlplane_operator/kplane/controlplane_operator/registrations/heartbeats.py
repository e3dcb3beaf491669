"""Sees whether the mcm of each instance lives. If one does not, its registration gets Running=Unknown.

mcm writes the condition while it lives. An mcm that hangs or is gone leaves it at True. While an instance runs, its mcm
renews a Lease in the control plane every 30 s. A watchdog kills the instance before that Lease expires. So after a
Lease has stayed the same for its whole duration, no instance of that mcm runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import ConditionStatus, Service
from kplane.api.conditions import RUNNING
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.provider import Client, Conflict, NotFound
from kplane.provider.client.resources import LEASES

__all__ = ["InstanceHeartbeats"]

_NAMESPACE: Final = "kube-system"
_PROGRAMS: Final = {Service.CONTROLLERS: "kube-controller-manager", Service.SCHEDULER: "kube-scheduler"}
"""Also the names of their Leases."""
_DURATION_SECONDS: Final = 120.0
"""Of the Leases of mcm. A tenant that writes a shorter one has its condition doubted no earlier."""
_LONGEST_SECONDS: Final = 600.0
_RUNS: Final[ConditionStatus] = "True"


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """What was seen of a Lease, and of the condition Running, which mcm writes too."""

    signs: tuple[str, ...]
    at: float
    """When that was seen first, by the monotonic clock."""
    since: datetime
    """The same by the wall clock."""

    def is_stale(self, *, now: float, duration_seconds: float) -> bool:
        return now - self.at > duration_seconds


class InstanceHeartbeats:
    """Compares the Leases of instances from one look to the next. Tests replace `now`."""

    def __init__(self, context: OperatorContext, *, now: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._now = now
        self._seen: dict[str, dict[tuple[str, str], _Heartbeat]] = {}
        """By uid of the control plane; then by uid of the registration and name of the Lease."""

    def concerns(self, uid: str) -> bool:
        """Tell whether an instance is said to run for the control plane with this uid."""
        return bool(self._running(uid))

    def forget(self, uid: str) -> None:
        """Forget the control plane with this uid: it sleeps, or is gone."""
        self._seen.pop(uid, None)

    async def observe(self, uid: str, client: Client) -> None:
        """Look at the Leases in a control plane once; `client` is one of it. Raises ProviderError."""
        before, seen = self._seen.get(uid, {}), dict[tuple[str, str], _Heartbeat]()
        for registration in self._running(uid):
            for program in _programs(registration):
                key = registration["metadata"]["uid"], program
                lease = await _read(client, program)
                signs = _signs(lease, registration)
                known = before.get(key)
                beats = known is None or known.signs != signs
                seen[key] = _Heartbeat(signs, self._now(), datetime.now(UTC)) if known is None or beats else known
                if seen[key].is_stale(now=self._now(), duration_seconds=_duration(lease)):
                    await self._doubt(registration, program, since=seen[key].since)
                    break
        self._seen[uid] = seen

    def _running(self, uid: str) -> list[Object]:
        served = self._context.stores.registrations.by("served", uid)
        return [registration for registration in served if _is_said_to_run(registration, uid)]

    async def _doubt(self, registration: Object, program: str, *, since: datetime) -> None:
        message = (
            f"no mcm has renewed the Lease {_NAMESPACE}/{program} of the control plane since"
            f" {since:%Y-%m-%dT%H:%M:%SZ}, so no instance may run; see whether mcm runs, and read its log; mcm writes"
            " this condition again when it is back"
        )
        try:
            await self._context.status.doubt_instance(
                self._context.stores.registrations, PartialRegistration.of(registration), message=message
            )
        except Conflict:
            # It was written meanwhile, maybe by mcm: the next look decides anew.
            return


def _is_said_to_run(registration: Object, uid: str) -> bool:
    instance = (registration.get("status") or {}).get("instance") or {}
    runs = stored_condition(registration, RUNNING).get("status") == _RUNS
    return runs and instance.get("controlPlaneUID") == uid and not is_paused(PartialRegistration.of(registration))


def _programs(registration: Object) -> list[str]:
    services = ((registration.get("status") or {}).get("instance") or {}).get("services") or ()
    return [program for service, program in _PROGRAMS.items() if service in services]


async def _read(client: Client, program: str) -> Mapping[str, Any] | None:
    try:
        lease = await client.get(LEASES, program, namespace=_NAMESPACE)
    except NotFound:
        return None
    spec = lease.get("spec")
    # A tenant's API server may answer with anything.
    return spec if isinstance(spec, Mapping) else {}


def _signs(lease: Mapping[str, Any] | None, registration: Object) -> tuple[str, ...]:
    condition = stored_condition(registration, RUNNING)
    said = [condition.get(name) for name in ("reason", "message", "lastTransitionTime")]
    renewed = [lease.get(name) for name in ("holderIdentity", "renewTime")] if lease is not None else [None]
    return tuple(str(each)[:256] for each in (*renewed, *said))


def _duration(lease: Mapping[str, Any] | None) -> float:
    asked = lease.get("leaseDurationSeconds") if lease is not None else None
    # An integer of JSON may be larger than any float.
    return float(min(max(asked, _DURATION_SECONDS), _LONGEST_SECONDS)) if isinstance(asked, int) else _DURATION_SECONDS
