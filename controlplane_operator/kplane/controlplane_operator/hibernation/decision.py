"""Decides whether a control plane sleeps: a function of its object and its class, so that every pass decides the same.

What was decided before is in `status.hibernation`. It is written before an API server ends, and goes when one answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kplane.api import (
    MAX_ROTATION_VALUE,
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneMode,
    EndpointPolicy,
    HibernationReason,
    HibernationStatus,
    RotationPhase,
    StartPolicy,
    find_condition,
)
from kplane.api.clocks import is_future
from kplane.api.conditions import HIBERNATED
from kplane.api.names import ROTATE_ANNOTATION
from kplane.controlplane_operator.class_policy import home_asked_for
from kplane.controlplane_operator.gateway import Gateway, asked_policy
from kplane.controlplane_operator.hibernation.requests import Requests

__all__ = [
    "IN_USE",
    "Decision",
    "decide",
    "idle_after",
    "is_migrating",
    "is_rotated",
    "last_activity",
    "new_sleep",
    "start_of",
]

_UNPROVEN: Final = timedelta(seconds=120)
"""By so much a wake without use counts as older. The gateway reports a use within 20 seconds, but no answers by 401."""
_ASKED_LATELY: Final = timedelta(minutes=5)
"""If a clock that was ahead noted the begin of a sleep, only a wake that was asked for lately ends it."""
_ALWAYS: Final = "spec.virtual.start is Always"
_MIGRATES: Final = "its data move"
_ROTATED: Final = "its keys are rotated"
IN_USE: Final = "it is in use"
"""Why a control plane is to be awake that clients use."""
_WOKEN: Final = "a client asked for it"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a control plane is to sleep."""

    sleep: HibernationStatus | None
    """What its status says of its sleep; None: it is to be awake."""
    why: str = ""
    """Why it is to be awake, in a clause."""
    begins: bool = False
    """The sleep of a control plane that is published begins now."""
    always: bool = False
    """It never sleeps."""
    kept: bool = False
    """It was to sleep, and cannot."""
    stuck: bool = False
    """It is kept awake by the deletion of a namespace that does not end."""
    crowded: bool = False
    """It is to wake, and waits for room: it sleeps until then."""
    waits: str | None = None
    """Its API server does not end yet: what it waits for, in a clause, or nothing where that goes without saying."""
    again: datetime | None = None
    """When time alone may change the decision."""


def start_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, gateway: Gateway | None) -> StartPolicy:
    """Return when the API server runs: by the spec, else by the class.

    Else it starts on demand if the gateway alone has its address, because then each client wakes it. What sleeps while
    a move is planned starts on demand: the spec of the other mode cannot say it.
    """
    spec = control_plane.spec
    if control_plane.home.mode is not ControlPlaneMode.VIRTUAL or spec.endpoint_ref is not None:
        return StartPolicy.ALWAYS
    if control_plane.status.hibernation is not None and is_only_planned(control_plane, chosen=chosen):
        return StartPolicy.ON_DEMAND
    own = spec.virtual.start if spec.virtual is not None else None
    by_class = chosen.spec.virtual.start if chosen is not None and chosen.spec.virtual is not None else None
    if asked := own or by_class:
        return asked
    elsewhere = asked_policy(control_plane, chosen=chosen) not in {None, EndpointPolicy.GATEWAY}
    return StartPolicy.ALWAYS if gateway is None or elsewhere else StartPolicy.ON_DEMAND


def idle_after(chosen: ControlPlaneClass | None) -> timedelta | None:
    """Return how long a control plane stays awake that no client uses; None: at all times."""
    idle = chosen.spec.virtual.idle if chosen is not None and chosen.spec.virtual is not None else None
    return idle.length if idle is not None else None


def decide(
    control_plane: ControlPlane,
    *,
    start: StartPolicy,
    idle: timedelta | None = None,
    chosen: ControlPlaneClass | None = None,
    now: datetime,
    counted: bool = False,
) -> Decision:
    """Decide about a control plane as it is now. `idle` is how long one stays awake that no client uses.

    `chosen` is its class, by which the spec may plan a move. `counted` says that the operator itself counts the use.
    """
    sleep = control_plane.status.hibernation
    if start is StartPolicy.ALWAYS:
        return Decision(None, _ALWAYS, always=True)
    if is_rotated(control_plane):
        return Decision(None, _ROTATED)
    if is_migrating(control_plane):
        return Decision(None, _MIGRATES)
    requests = Requests.of(control_plane, start=start, now=now)
    if sleep is not None:
        if is_future(sleep.since, now=now):
            if sleep.next_wake is not None:
                # What is due between now and then was left out.
                return Decision(None, "a clock that was ahead computed what is due inside")
            # No request would be newer until then. The status takes up the corrected time.
            sleep = sleep.model_copy(update={"since": now - _ASKED_LATELY})
        why = _why_wake(control_plane, chosen=chosen, sleep=sleep, requests=requests, now=now)
        return Decision(None, why) if why is not None else Decision(sleep, again=sleep.next_wake)
    if control_plane.status.endpoint is None:
        if requests.wake is not None:
            return Decision(None, _WOKEN)
        return Decision(new_sleep(control_plane, reason=HibernationReason.NOT_USED_YET, now=now))
    return _while_awake(control_plane, requests=requests, idle=idle, now=now, counted=counted)


def _while_awake(
    control_plane: ControlPlane, *, requests: Requests, idle: timedelta | None, now: datetime, counted: bool
) -> Decision:
    needed = _latest(requests.wake, _woken(control_plane, used=requests.used, now=now))
    if requests.sleep is not None and (needed is None or requests.sleep > needed):
        return Decision(new_sleep(control_plane, reason=HibernationReason.REQUESTED, now=now), begins=True)
    used = _latest(needed, requests.used)
    if idle is None or used is None or (requests.used is None and not counted):
        # Without a gateway that notes its use, it is not known to be idle.
        return Decision(None, IN_USE)
    if now >= used + idle:
        return Decision(new_sleep(control_plane, reason=HibernationReason.IDLE, now=now), begins=True)
    return Decision(None, IN_USE, again=used + idle)


def last_activity(control_plane: ControlPlane, *, now: datetime) -> datetime | None:
    """Return when a control plane was used or woken last; None if that is not known.

    A wake that was asked for counts less until a use follows: the API server may know no client that asked.
    """
    requests = Requests.of(control_plane, start=StartPolicy.ON_DEMAND, now=now)
    woken = _latest(requests.wake, _woken(control_plane, used=requests.used, now=now))
    if woken is not None and requests.wake is not None and (requests.used is None or requests.used < requests.wake):
        woken -= _UNPROVEN
    return _latest(woken, requests.used)


def _woken(control_plane: ControlPlane, *, used: datetime | None, now: datetime) -> datetime | None:
    """Return when a control plane woke last; None if that is unknown.

    If a clock that was ahead noted that time, it is the last use: a request to sleep that is older has had its sleep.
    """
    known = find_condition(control_plane.status.conditions, HIBERNATED)
    if known is None:
        return None
    return used if is_future(known.last_transition_time, now=now) else known.last_transition_time


def _latest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def new_sleep(control_plane: ControlPlane, *, reason: HibernationReason, now: datetime) -> HibernationStatus:
    """Return what the status says of a sleep that begins now."""
    return HibernationStatus(since=now, reason=reason, observed_generation=control_plane.metadata.generation)


def _why_wake(
    control_plane: ControlPlane,
    *,
    chosen: ControlPlaneClass | None,
    sleep: HibernationStatus,
    requests: Requests,
    now: datetime,
) -> str | None:
    """Return what ends the sleep, in a clause; None if nothing does."""
    if requests.wake is not None and requests.wake > sleep.since:
        return _WOKEN
    # A plan is made of what the shared etcd has, without an API server. The sleep keeps its generation: when the plan
    # is carried out or given up, whatever else was changed in the spec meanwhile takes effect.
    changed = sleep.observed_generation != control_plane.metadata.generation
    if changed and not is_only_planned(control_plane, chosen=chosen):
        return "its spec was changed"
    if sleep.next_wake is not None and sleep.next_wake <= now:
        return "something inside is due"
    return None


def is_only_planned(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Tell whether the spec asks what a move would take, and nothing moves or has moved.

    Another class may name another data store, and so be all that differs.
    """
    migration, asked = control_plane.spec.migration, home_asked_for(control_plane, chosen=chosen)
    planned = migration is not None and migration.plan and not is_migrating(control_plane)
    return planned and not asked.is_like(control_plane.home)


def is_migrating(control_plane: ControlPlane) -> bool:
    """Tell whether its data are on their way to another home."""
    migration = control_plane.status.migration
    return migration is not None and migration.step is not None and not migration.step.is_cut


def is_rotated(control_plane: ControlPlane) -> bool:
    """Tell whether its CAs and its ServiceAccount key are being exchanged, or are to be."""
    latest, value = control_plane.status.rotation, control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
    if latest is not None and latest.phase is not RotationPhase.DONE:
        return True
    asked = value is not None and 0 < len(value) <= MAX_ROTATION_VALUE
    return asked and control_plane.status.endpoint is not None and (latest is None or latest.value != value)
