"""Decision whether a control plane sleeps: a function of its object and class, so that each pass decides the same.

`status.hibernation` has the previous decision. It is written before an API server ends, and removed when an API server
answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kplane.api import (
    MAX_ROTATION_VALUE,
    READY,
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
"""Age added to a wake without a use since. The gateway reports a use within 20 s, except requests answered with 401."""
_UNUSED_WAKE: Final = timedelta(minutes=3)
"""Maximum time that a wake counts without a use. The gateway reports once a minute, and may miss one or two reports."""
_ASKED_LATELY: Final = timedelta(minutes=5)
"""Age given to a sleep whose start time is in the future. Only a wake request of this time ends such a sleep."""
_OF_A_MOVE: Final = frozenset({"mode", "virtual", "dedicated", "migration"})
"""Fields of the spec that a plan of a move changes. Of `virtual`, a sleeping control plane heeds `start` without them,
and the data store by a comparison of homes.
"""
_ALWAYS: Final = "spec.virtual.start is Always"
_MIGRATES: Final = "its data move"
_ROTATED: Final = "its keys are rotated"
IN_USE: Final = "it is in use"
"""Reason for staying awake: clients use the control plane."""
_WOKEN: Final = "a client asked for it"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision whether a control plane is to sleep."""

    sleep: HibernationStatus | None
    """The sleep for its status; None if the control plane is to be awake."""
    why: str = ""
    """Reason for being awake, as a clause."""
    begins: bool = False
    """Whether the sleep of a published control plane starts now."""
    always: bool = False
    """Whether the control plane never sleeps."""
    kept: bool = False
    """Whether the control plane was to sleep but cannot."""
    stuck: bool = False
    """Whether the deletion of a namespace that does not end keeps the control plane awake."""
    crowded: bool = False
    """Whether the control plane is to wake but has to wait, asleep, for a slot."""
    waits: str | None = None
    """Obstacle to the end of its API server, as a clause that may be empty; None if the API server may end."""
    again: datetime | None = None
    """Time at which the decision may change without an event; None if there is none."""


def start_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, gateway: Gateway | None) -> StartPolicy:
    """Return the start policy: by the spec, else by the class, else by the published addresses.

    By default a control plane starts on demand if only the gateway has its address, because each client then wakes it.
    A sleeping control plane with a merely planned migration starts on demand, because a spec of the other mode has no
    such field.
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
    """Return the idle time after which a control plane may sleep; None if it never sleeps by itself."""
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
    reported: bool = True,
) -> Decision:
    """Decide whether the control plane sleeps in its present state.

    `idle` is the time without use after which it may sleep. `chosen` is its class, which may plan a migration.
    `counted` means that the operator itself counts the use, `reported` that there is a gateway to report it.
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
                # Due times between now and that future time were not considered.
                return Decision(None, "a clock that was ahead computed what is due inside")
            # No request would be newer than a future time. The status gets the corrected time.
            sleep = sleep.model_copy(update={"since": now - _ASKED_LATELY})
        why = _why_wake(control_plane, chosen=chosen, sleep=sleep, requests=requests, now=now)
        return Decision(None, why) if why is not None else Decision(sleep, again=sleep.next_wake)
    if control_plane.status.endpoint is None:
        if requests.wake is not None:
            return Decision(None, _WOKEN)
        return Decision(new_sleep(control_plane, reason=HibernationReason.NOT_USED_YET, now=now))
    requested = _requested_sleep(control_plane, requests=requests, now=now)
    if requested is not None:
        return Decision(requested, begins=True)
    idle_at = _idle_at(control_plane, requests=requests, idle=idle, now=now, counted=counted, reported=reported)
    if idle_at is None or now < idle_at:
        return Decision(None, IN_USE, again=idle_at)
    return Decision(new_sleep(control_plane, reason=HibernationReason.IDLE, now=now), begins=True)


def _requested_sleep(control_plane: ControlPlane, *, requests: Requests, now: datetime) -> HibernationStatus | None:
    """Return the sleep that a request newer than the last wake asks for; None without such a request."""
    woken = _latest(requests.wake, _woken(control_plane, used=requests.used, now=now))
    if requests.sleep is None or (woken is not None and requests.sleep <= woken):
        return None
    return new_sleep(control_plane, reason=HibernationReason.REQUESTED, now=now)


def _idle_at(
    control_plane: ControlPlane,
    *,
    requests: Requests,
    idle: timedelta | None,
    now: datetime,
    counted: bool,
    reported: bool,
) -> datetime | None:
    """Return the time at which an awake control plane counts as idle; None if that is unknown or it never does.

    A requested wake without a later use may come from a client whose credential the API server refuses. Such a wake
    counts only until the gateway would have reported a use.
    """
    if idle is None:
        return None
    used, woken = requests.used, _woken(control_plane, used=requests.used, now=now)
    if not _is_unproven(requests):
        if used is None and not counted:
            # Without a report of a gateway, the use is unknown.
            return None
        last = _latest(woken, used)
        return last + idle if last is not None else None
    if used is None and not reported:
        return None
    # A slow start delays the first use, so the time counts from its end.
    begun = _latest(requests.wake, woken, _ready_since(control_plane, now=now))
    limits = [begun + min(idle, _UNUSED_WAKE)] if begun is not None else []
    if used is not None and woken is not None and used >= woken:
        # The wake was requested while the control plane was awake already.
        limits.append(used + idle)
    return _latest(*limits)


def last_activity(control_plane: ControlPlane, *, now: datetime) -> datetime | None:
    """Return the time of the latest use or wake; None if it is unknown.

    A requested wake counts as older until a use follows, because the requests may come from a client without
    credentials.
    """
    requests = Requests.of(control_plane, start=StartPolicy.ON_DEMAND, now=now)
    woken = _latest(requests.wake, _woken(control_plane, used=requests.used, now=now))
    if woken is not None and _is_unproven(requests):
        woken -= _UNPROVEN
    return _latest(woken, requests.used)


def _is_unproven(requests: Requests) -> bool:
    """Return whether a wake was requested and no use has been reported since."""
    return requests.wake is not None and (requests.used is None or requests.used < requests.wake)


def _ready_since(control_plane: ControlPlane, *, now: datetime) -> datetime | None:
    """Return the time since which condition Ready is True; None if it is not, or if its time is in the future."""
    ready = find_condition(control_plane.status.conditions, READY)
    if ready is None or ready.status != "True" or is_future(ready.last_transition_time, now=now):
        return None
    return ready.last_transition_time


def _woken(control_plane: ControlPlane, *, used: datetime | None, now: datetime) -> datetime | None:
    """Return the time of the latest wake; None if it is unknown.

    A wake time in the future comes from a wrong clock, so the latest use counts instead. An older request to sleep has
    already had its effect.
    """
    hibernated = find_condition(control_plane.status.conditions, HIBERNATED)
    if hibernated is None:
        return None
    return used if is_future(hibernated.last_transition_time, now=now) else hibernated.last_transition_time


def _latest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def new_sleep(control_plane: ControlPlane, *, reason: HibernationReason, now: datetime) -> HibernationStatus:
    """Return the status of a sleep that starts now."""
    return HibernationStatus(
        since=now,
        reason=reason,
        observed_generation=control_plane.metadata.generation,
        observed_spec_hash=_spec_hash(control_plane),
    )


def _spec_hash(control_plane: ControlPlane) -> str:
    """Return the SHA-256 of the spec without the fields that a plan of a move changes."""
    spec = control_plane.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(_OF_A_MOVE))
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def _why_wake(
    control_plane: ControlPlane,
    *,
    chosen: ControlPlaneClass | None,
    sleep: HibernationStatus,
    requests: Requests,
    now: datetime,
) -> str | None:
    """Return the reason that ends the sleep, as a clause; None if there is none."""
    if requests.wake is not None and requests.wake > sleep.since:
        return _WOKEN
    # A plan needs only the data in the shared etcd, and no API server. The sleep keeps its observed generation and
    # hash: once the plan is carried out or dropped, other changes of the spec take effect.
    changed = sleep.observed_generation != control_plane.metadata.generation
    if changed and not is_only_planned(control_plane, chosen=chosen) and not _is_plan_dropped(control_plane, chosen):
        return "its spec was changed"
    if sleep.next_wake is not None and sleep.next_wake <= now:
        return "something inside is due"
    return None


def _is_plan_dropped(control_plane: ControlPlane, chosen: ControlPlaneClass | None) -> bool:
    """Return whether the spec asks for the present home, and differs from that of the sleep by a plan at most."""
    sleep = control_plane.status.hibernation
    is_at_home = home_asked_for(control_plane, chosen=chosen).is_like(control_plane.home)
    return is_at_home and sleep is not None and sleep.observed_spec_hash == _spec_hash(control_plane)


def is_only_planned(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Return whether the spec asks for the plan of a migration, and no migration is in progress.

    A different data store in the class is enough for such a plan.
    """
    migration, asked = control_plane.spec.migration, home_asked_for(control_plane, chosen=chosen)
    planned = migration is not None and migration.plan and not is_migrating(control_plane)
    return planned and not asked.is_like(control_plane.home)


def is_migrating(control_plane: ControlPlane) -> bool:
    """Return whether the data of the control plane are moving to another home."""
    migration = control_plane.status.migration
    return migration is not None and migration.step is not None and not migration.step.is_cut


def is_rotated(control_plane: ControlPlane) -> bool:
    """Return whether a rotation of its CAs and ServiceAccount key is in progress or requested."""
    latest, value = control_plane.status.rotation, control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
    if latest is not None and latest.phase is not RotationPhase.DONE:
        return True
    asked = value is not None and 0 < len(value) <= MAX_ROTATION_VALUE
    return asked and control_plane.status.endpoint is not None and (latest is None or latest.value != value)
