"""Sleep of control planes: decides in each pass, and stops an API server that is not in use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.api import READY, ControlPlane, ControlPlaneClass, HibernationReason, find_condition, is_true
from kplane.api.conditions import HIBERNATED
from kplane.api.names import controllers_secret_name, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Hibernating, Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.hibernation.credentials import Credentials, record_credentials
from kplane.controlplane_operator.hibernation.decision import IN_USE, Decision, decide, idle_after, start_of
from kplane.controlplane_operator.hibernation.host_name_use import (
    IN_USE_AFTER_REQUEST,
    HostNameUse,
    UseUnknown,
    is_counted,
)
from kplane.controlplane_operator.hibernation.inside import Inside, look_inside
from kplane.controlplane_operator.hibernation.room import Room
from kplane.controlplane_operator.registrations.consumers import instances_of, registrations_of
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.pki.kubeconfig import config_of
from kplane.provider import ProviderError
from kplane.provider.aio.backoff import Backoff

__all__ = ["Sleeper"]


_ASKED_AGAIN: Final = timedelta(seconds=60)
"""Interval of checks whether a control plane that is kept awake can sleep now."""
_HEARD_SECONDS: Final = 2.0
"""Time that an API server serves after its sleep was announced, because a gateway forwards requests until it knows."""
_NEED_KEYS: Final = frozenset({Reason.KEYS_CHANGED, Reason.KEYS_UNUSABLE, Reason.FAILED})
"""Reasons of condition Ready for keys that cannot be used. An API server that runs keeps the keys of its start."""
_LOOKED_SECONDS: Final = 30.0
"""Time during which a failed check of the inside is repeated. Then the control plane is kept awake: work may be due."""


@dataclass(slots=True)
class _Beginning:
    """State of a control plane that falls asleep. A restarted operator starts with an empty state."""

    announced: float | None = None
    credentials: Credentials | None = None
    """Credentials found by the latest check of the inside."""
    recorded: Credentials | None = None
    """Credentials recorded in the gateway's Secret."""
    deletions: dict[str, datetime] = field(default_factory=dict)
    """Namespace deletions with a time in the future, by uid, and the time at which each was first seen."""
    failing: float | None = None
    """Monotonic time of the first of several consecutive failed checks; None if the latest check succeeded."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=1.0, maximum_seconds=8.0))


class Sleeper:
    """Decides about sleep, and checks the inside of control planes that fall asleep."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        backend: Callable[[ControlPlane], Hibernating],
        room: Room,
        use: HostNameUse,
    ) -> None:
        """`backend` returns the provisioner of a control plane of mode Virtual."""
        self._context = context
        self._stores = context.stores
        self._backend = backend
        self._room = room
        self._use = use
        self._beginnings: dict[str, _Beginning] = {}
        """By uid of the control plane."""

    async def decide(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Decision:
        """Decide whether the control plane sleeps.

        The decision respects the limits of awake control planes, and work inside that needs an API server.
        """
        now = datetime.now(UTC)
        start = start_of(control_plane, chosen=chosen, gateway=self._context.gateway)
        counted = is_counted(control_plane, chosen=chosen, gateway=self._context.gateway)
        idle = idle_after(chosen)
        decision = decide(
            control_plane,
            start=start,
            idle=idle,
            chosen=chosen,
            now=now,
            counted=counted,
            reported=self._context.gateway is not None,
        )
        decision = self._room.settle(control_plane, decision, chosen=chosen, now=now)
        if counted and decision.begins:
            decision = await self._unless_used(control_plane, decision, now=now)
        if decision.sleep is None or _is_asleep(control_plane) or control_plane.status.endpoint is None:
            self._beginnings.pop(control_plane.metadata.uid or "", None)
            return decision
        if not decision.begins and self._backend(control_plane).is_ending(control_plane):
            # Pods take a while to end, and no API server may answer a check of the inside meanwhile.
            return decision
        beginning = self._beginnings.setdefault(control_plane.metadata.uid or "", _Beginning())
        if decision.begins:
            beginning.announced = None
        elif beginning.announced is None:
            beginning.announced = time.monotonic()
        broken = _why_no_wake(control_plane)
        inside = Inside(broken) if broken is not None else await self._look(control_plane, now=now, beginning=beginning)
        if inside.unknown and (delay := _until_next_look(beginning)) is not None:
            again = datetime.now(UTC) + timedelta(seconds=delay)
            if decision.begins:
                return Decision(None, inside.kept, again=again)
            return replace(decision, waits=f"waiting for a look inside: {inside.kept}", again=again)
        if inside.kept:
            self._room.spare(control_plane.metadata.uid)
            return Decision(None, inside.kept, kept=True, stuck=bool(inside.stuck), again=now + _ASKED_AGAIN)
        beginning.failing = None
        beginning.credentials = inside.credentials
        sleep = decision.sleep.model_copy(
            update={"next_wake": inside.next_wake, "stuck_namespace": inside.stuck or None}
        )
        if beginning.announced is not None:
            remaining = beginning.announced + _HEARD_SECONDS - time.monotonic()
            if remaining > 0:
                return replace(decision, sleep=sleep, waits="", again=datetime.now(UTC) + timedelta(seconds=remaining))
        return replace(decision, sleep=sleep)

    def forget(self, uid: str | None) -> None:
        """Discard the state of a deleted control plane."""
        self._beginnings.pop(uid or "", None)
        self._room.forget(uid)

    def reported(self, control_plane: ControlPlane) -> None:
        """Enqueue the next waiting control plane, because the status of this control plane may have freed a slot."""
        self._room.call_next(after=control_plane.metadata.uid)

    async def hibernate(self, control_plane: ControlPlane, decision: Decision) -> Provision | None:
        """Stop the API server of a control plane that is to sleep. Returns None if an API server has to run now.

        Raises ConditionError (SleepFailed) if the API server cannot be stopped.
        """
        if decision.sleep is None or decision.begins or decision.waits is not None:
            # The gateway has to see the announcement first, and a later pass checks the inside once more.
            return None
        if not _is_asleep(control_plane) and self.waits_for(control_plane):
            return None
        # Credentials are recorded before the API server ends, because only the API server knows them.
        await self._record_credentials(control_plane)
        return await self._backend(control_plane).hibernate(control_plane)

    async def _record_credentials(self, control_plane: ControlPlane) -> None:
        beginning = self._beginnings.get(control_plane.metadata.uid or "")
        if beginning is None or beginning.credentials is None or beginning.credentials == beginning.recorded:
            return
        await record_credentials(self._context, control_plane, beginning.credentials)
        beginning.recorded = beginning.credentials

    async def _unless_used(self, control_plane: ControlPlane, decision: Decision, *, now: datetime) -> Decision:
        """Return `decision` for a control plane with a host name, or a decision to stay awake if it is in use."""
        if decision.sleep is None or decision.sleep.reason is HibernationReason.REQUESTED:
            return decision
        try:
            used = await self._use.observe(control_plane)
        except (UseUnknown, ProviderError) as error:
            self._room.spare(control_plane.metadata.uid)
            return Decision(None, str(error), kept=True, again=now + _ASKED_AGAIN)
        if used is None or now >= used + IN_USE_AFTER_REQUEST:
            return decision
        self._room.spare(control_plane.metadata.uid)
        return Decision(None, IN_USE, again=used + IN_USE_AFTER_REQUEST)

    async def _look(self, control_plane: ControlPlane, *, now: datetime, beginning: _Beginning) -> Inside:
        try:
            needed = await self._backend(control_plane).needs_api_server(control_plane)
        except KeyspaceError as error:
            return Inside(f"the operator cannot read in etcd: {error}", unknown=True)
        if needed is not None:
            return Inside(needed)
        return await self._look_inside(control_plane, now=now, deletions=beginning.deletions)

    async def _look_inside(
        self, control_plane: ControlPlane, *, now: datetime, deletions: dict[str, datetime]
    ) -> Inside:
        key = management_namespace(control_plane.name), controllers_secret_name(control_plane.name)
        config = config_of(self._stores.secrets.get(key))
        if config is None:
            return Inside("it has no credentials for a look inside", unknown=True)
        try:
            async with tenant_client(config, connections=self._context.connections) as client:
                return await look_inside(client, now=now, first_seen=deletions)
        except ProviderError as error:
            return Inside(f"the operator cannot look inside: {error}", unknown=True)

    def waits_for(self, control_plane: ControlPlane) -> str:
        """Return a clause about registrations or instances that have to end first; empty if there are none."""
        if control_plane.status.endpoint is None:
            return ""
        if served := registrations_of(control_plane, stores=self._stores):
            return f"waiting until registrations are no longer ready: {', '.join(served)}"
        if working := instances_of(control_plane, stores=self._stores):
            return f"waiting until instances have ended, of registrations {', '.join(working)}"
        return ""


def _until_next_look(beginning: _Beginning) -> float | None:
    """Return the seconds until the check after a failed one; None if the checks have failed for the maximum time."""
    now = time.monotonic()
    if beginning.failing is None:
        beginning.failing = now
        beginning.backoff.reset()
    return beginning.backoff.next_delay() if now - beginning.failing < _LOOKED_SECONDS else None


def _why_no_wake(control_plane: ControlPlane) -> str | None:
    """Return a clause that explains why a stopped API server could not start again; None without a known obstacle."""
    ready = find_condition(control_plane.status.conditions, READY)
    if ready is None or ready.status != "False" or ready.reason not in _NEED_KEYS:
        return None
    return "its API server could not start again: see condition Ready"


def _is_asleep(control_plane: ControlPlane) -> bool:
    return is_true(control_plane.status.conditions, HIBERNATED)
