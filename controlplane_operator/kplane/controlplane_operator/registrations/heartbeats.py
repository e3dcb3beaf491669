"""Detection of dead mcm: the registration of an instance without a live mcm gets the condition Running=Unknown.

mcm writes the condition while it lives. If an mcm hangs or is gone, the condition stays at True. While an instance
runs, its mcm renews a Lease in the control plane every 30 s. A watchdog kills the instance before that Lease expires.
So after a Lease has not changed for its whole duration, no instance of that mcm runs.
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
"""Programs of the services. The Leases have the same names."""
_DURATION_SECONDS: Final = 120.0
"""Duration of the Leases of mcm. A shorter duration, which a tenant may write, is not used."""
_LONGEST_SECONDS: Final = 600.0
_RUNS: Final[ConditionStatus] = "True"


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """Last observed content of a Lease and of the condition Running, both of which mcm writes."""

    signs: tuple[str, ...]
    at: float
    """Time of the first observation of this content, by the monotonic clock."""
    since: datetime
    """Time of the first observation of this content, by the wall clock."""

    def is_stale(self, *, now: float, duration_seconds: float) -> bool:
        return now - self.at > duration_seconds


class InstanceHeartbeats:
    """Comparison of the Leases of instances between observations. Tests replace `now`."""

    def __init__(self, context: OperatorContext, *, now: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._now = now
        self._seen: dict[str, dict[tuple[str, str], _Heartbeat]] = {}
        """By uid of the control plane; then by uid of the registration and name of the Lease."""

    def concerns(self, uid: str) -> bool:
        """Return whether an instance is reported to run for the control plane with this uid."""
        return bool(self._running(uid))

    def forget(self, uid: str) -> None:
        """Discard the observations of the control plane with this uid, because it sleeps or is gone."""
        self._seen.pop(uid, None)

    async def observe(self, uid: str, client: Client) -> None:
        """Observe the Leases in a control plane once; `client` connects to the control plane. Raises ProviderError."""
        before, observed = self._seen.get(uid, {}), dict[tuple[str, str], _Heartbeat]()
        for registration in self._running(uid):
            for program in _programs(registration):
                key = registration["metadata"]["uid"], program
                lease = await _read(client, program)
                signs = _signs(lease, registration)
                previous = before.get(key)
                beats = previous is None or previous.signs != signs
                observed[key] = (
                    _Heartbeat(signs, self._now(), datetime.now(UTC)) if previous is None or beats else previous
                )
                if observed[key].is_stale(now=self._now(), duration_seconds=_duration(lease)):
                    await self._doubt(registration, program, since=observed[key].since)
                    break
        self._seen[uid] = observed

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
            # The status has changed meanwhile, maybe by mcm. The next observation decides again.
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
    # The API server of a tenant may return any JSON.
    return spec if isinstance(spec, Mapping) else {}


def _signs(lease: Mapping[str, Any] | None, registration: Object) -> tuple[str, ...]:
    condition = stored_condition(registration, RUNNING)
    condition_fields = [condition.get(name) for name in ("reason", "message", "lastTransitionTime")]
    lease_fields = [lease.get(name) for name in ("holderIdentity", "renewTime")] if lease is not None else [None]
    return tuple(str(value)[:256] for value in (*lease_fields, *condition_fields))


def _duration(lease: Mapping[str, Any] | None) -> float:
    duration = lease.get("leaseDurationSeconds") if lease is not None else None
    # An integer in JSON may be larger than any float.
    return (
        float(min(max(duration, _DURATION_SECONDS), _LONGEST_SECONDS))
        if isinstance(duration, int)
        else _DURATION_SECONDS
    )
