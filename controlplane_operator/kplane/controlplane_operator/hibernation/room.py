"""Limits of awake control planes: how many may be awake, which to evict, and which wakes next.

Only control planes that start on demand count. All others run at all times and are never evicted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, HibernationReason, StartPolicy, find_condition, is_true
from kplane.api.compute_resources import quantity
from kplane.api.conditions import HIBERNATED
from kplane.api.reasons import FALLS_ASLEEP, Reason
from kplane.controlplane_operator.backends.versions import resources_of
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.hibernation.decision import Decision, is_rotated, last_activity, new_sleep, start_of
from kplane.controlplane_operator.hibernation.requests import Requests
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = ["Holder", "Limits", "Room", "displaced", "fits"]

_IN_USE: Final = timedelta(minutes=3)
"""Time in use after a report of the gateway, which reports once a minute. One or two reports may be lost."""
_START_SECONDS: Final = 10.0
"""Maximum time that a start counts against the limit of concurrent starts, so that a stuck start blocks no others."""
_BROKEN_SECONDS: Final = 300.0
"""Maximum time that a waking control plane takes a slot. If its API server never gets ready, it cannot be evicted."""
_NEXT_SECONDS: Final = 1.0
_LATER_SECONDS: Final = 20.0
"""Intervals at which the first waiting control plane and the others ask again. A finished start wakes them earlier."""
_FIRST_SECONDS: Final = 60.0
"""Maximum time the head of the queue blocks smaller control planes behind it. Its requests have timed out by then."""
_FORGOTTEN_SECONDS: Final = 60.0
"""Time without a wake-up attempt after which a control plane leaves the queue."""
_SPARED_SECONDS: Final = 60.0
"""Time during which a control plane that cannot sleep is not evicted."""
_ASKED_SECONDS: Final = 45.0
"""Maximum time from an eviction request to the start of the sleep. It allows for repeated checks of the inside."""
_LEAVES_SECONDS: Final = 60.0
"""Time for which the slot of a control plane that falls asleep or is being deleted counts as free."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of awake control planes; None means no limit."""

    control_planes: int | None = None
    memory_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether any limit is set."""
        return self.control_planes is not None or self.memory_bytes is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """A control plane whose API server runs, starts or ends."""

    uid: str
    name: str
    memory_bytes: int
    active: datetime | None = None
    """Time of the latest use or wake; None if it is unknown, or if the control plane cannot sleep now."""
    leaves: bool = False
    """Whether the control plane falls asleep or is being deleted, and has started that recently."""


def fits(holders: Collection[Holder], *, limits: Limits) -> bool:
    """Return whether these control planes may be awake together.

    A single control plane always may, even if it exceeds the memory limit. Otherwise it would wait forever.
    """
    count, memory = len(holders), sum(holder.memory_bytes for holder in holders)
    if count <= 1:
        return True
    within = limits.control_planes is None or count <= limits.control_planes
    return within and (limits.memory_bytes is None or memory <= limits.memory_bytes)


def displaced(
    holders: Iterable[Holder], *, limits: Limits, now: datetime, newcomer: Holder | None = None
) -> list[Holder]:
    """Return the control planes to evict for a newcomer, or for the limits alone: the longest idle first.

    The result has no control plane in use, and no more than needed. For a newcomer it is empty if the evictions would
    not free enough.
    """
    staying = [holder for holder in holders if not holder.leaves]
    if newcomer is not None:
        staying.append(newcomer)
    idle = [holder for holder in staying if holder.active is not None and now - holder.active >= _IN_USE]
    victims: list[Holder] = []
    for holder in sorted(idle, key=lambda each: (each.active, each.uid)):
        if fits(staying, limits=limits):
            break
        if holder is not newcomer:
            staying.remove(holder)
            victims.append(holder)
    return victims if newcomer is None or fits(staying, limits=limits) else []


@dataclass(slots=True)
class _Waiting:
    holder: Holder
    since: datetime
    asked: float
    """Time of the latest attempt, by the monotonic clock."""
    first: float | None = None
    """Monotonic time since which it has been the head of the queue; None if it has not been yet."""


class Room:
    """Wakes control planes in the order of their requests, and evicts idle control planes for them.

    All lasting state is in the statuses. A restarted operator rebuilds the queue from the attempts of each control
    plane.
    """

    def __init__(self, context: OperatorContext, *, limits: Limits, at_once: int, replicas: int = 1) -> None:
        """`at_once` is the maximum number of concurrent starts; `replicas` is the number of API servers of each."""
        self._stores = context.stores
        self._gateway = context.gateway
        self._trigger = context.triggers.control_planes
        self._limits = limits
        self._at_once = at_once
        self._replicas = replicas
        self._waiting: dict[str, _Waiting] = {}
        self._starting: dict[str, tuple[float, Holder]] = {}
        """Admission times of control planes that are not awake yet."""
        self._leaving: dict[str, float] = {}
        """Time at which each control plane was asked to sleep, until it does."""
        self._spared: dict[str, float] = {}
        """Time until which a control plane that cannot sleep is not evicted."""

    def settle(
        self, control_plane: ControlPlane, decision: Decision, *, chosen: ControlPlaneClass | None, now: datetime
    ) -> Decision:
        """Return the decision about a control plane, changed if the limits require it."""
        uid, status = control_plane.metadata.uid or "", control_plane.status
        if decision.sleep is not None or decision.always or status.endpoint is None:
            self.forget(uid)
            return decision
        if is_true(status.conditions, HIBERNATED):
            return self._wake(control_plane, decision, chosen=chosen, now=now)
        self._waiting.pop(uid, None)
        if status.hibernation is not None:
            # A start may take as long as the time in use, and its clients arrive only afterwards.
            self.spare(uid)
            return decision
        self._starting.pop(uid, None)
        return self._stay(control_plane, decision, now=now) if self._limits.any else decision

    def spare(self, uid: str | None) -> None:
        """Exempt a control plane from eviction for 60 s, because work inside keeps it awake."""
        self._spared[uid or ""] = time.monotonic() + _SPARED_SECONDS
        self._leaving.pop(uid or "", None)

    def forget(self, uid: str | None) -> None:
        """Discard the state of a control plane that sleeps or is gone."""
        for entries in (self._waiting, self._starting, self._leaving, self._spared):
            entries.pop(uid or "", None)

    def call_next(self, *, after: str | None) -> None:
        """Enqueue the first waiting control plane after the pass of another, because a slot may be free now."""
        first = self._first()
        if first is not None and first != after:
            self._trigger.add(self._waiting[first].holder.name)

    def _wake(
        self, control_plane: ControlPlane, decision: Decision, *, chosen: ControlPlaneClass | None, now: datetime
    ) -> Decision:
        uid = control_plane.metadata.uid or ""
        if uid in self._starts():
            return decision
        memory = self._memory_bytes(control_plane, chosen=chosen)
        newcomer = Holder(uid, control_plane.name, memory)
        waiting = self._waiting.setdefault(uid, _Waiting(newcomer, _asked(control_plane, now=now), 0.0))
        waiting.holder, waiting.asked = newcomer, time.monotonic()
        obstacle = self._obstacle(newcomer, now=now)
        if obstacle is None:
            del self._waiting[uid]
            self._starting[uid] = time.monotonic(), newcomer
            return decision
        delay = _NEXT_SECONDS if self._first() == uid else _LATER_SECONDS
        again = now + timedelta(seconds=delay)
        return Decision(control_plane.status.hibernation, f"{decision.why}; {obstacle}", crowded=True, again=again)

    def _obstacle(self, newcomer: Holder, *, now: datetime) -> str | None:
        """Return a clause that explains why a control plane cannot wake yet; None if it can."""
        first = self._first()
        if first is not None and first != newcomer.uid and not self._passes(newcomer, self._waiting[first], now=now):
            return "others were asked to wake before it"
        if len(self._starts()) >= self._at_once:
            return f"{self._at_once} API servers start, and no more do at once"
        if not self._limits.any:
            return None
        holders = self._holders(now=now)
        if fits([*holders, newcomer], limits=self._limits):
            return None
        self._ask_to_sleep(displaced(holders, limits=self._limits, now=now, newcomer=newcomer))
        return "as many control planes are awake as may be"

    def _passes(self, newcomer: Holder, first: _Waiting, *, now: datetime) -> bool:
        """Return whether a control plane may overtake the head of the queue.

        It may if the head has waited for its time and still does not fit, but this control plane does.
        """
        if first.first is None or time.monotonic() - first.first < _FIRST_SECONDS:
            return False
        holders, limits = self._holders(now=now), self._limits
        return fits([*holders, newcomer], limits=limits) and not fits([*holders, first.holder], limits=limits)

    def _stay(self, control_plane: ControlPlane, decision: Decision, *, now: datetime) -> Decision:
        """Put an awake control plane to sleep if others need its slot and no client uses it."""
        uid = control_plane.metadata.uid or ""
        evicted = uid in self._leaving
        first = self._first()
        holders = self._holders(now=now)
        if first is None:
            victims = displaced(holders, limits=self._limits, now=now)
            evicted = any(holder.uid == uid for holder in victims)
            self._ask_to_sleep([holder for holder in victims if holder.uid != uid])
        mine = next((holder for holder in holders if holder.uid == uid), None)
        if evicted and mine is not None and mine.active is not None and now - mine.active >= _IN_USE:
            sleep = new_sleep(control_plane, reason=HibernationReason.ROOM_NEEDED, now=now)
            return Decision(sleep, begins=True)
        self._leaving.pop(uid, None)
        if first is not None or fits(holders, limits=self._limits):
            return decision
        later = now + timedelta(seconds=_LATER_SECONDS)
        return Decision(None, decision.why, again=min(later, decision.again or later))

    def _ask_to_sleep(self, holders: Iterable[Holder]) -> None:
        """Request an eviction once per control plane.

        A control plane that has not fallen asleep in time is spared, so that others are evicted.
        """
        now = time.monotonic()
        for holder in holders:
            if holder.uid not in self._leaving:
                self._leaving[holder.uid] = now
                self._trigger.add(holder.name)
            elif now - self._leaving[holder.uid] >= _ASKED_SECONDS:
                self.spare(holder.uid)

    def _first(self) -> str | None:
        oldest = time.monotonic() - _FORGOTTEN_SECONDS
        for uid in [uid for uid, waiting in self._waiting.items() if waiting.asked < oldest]:
            del self._waiting[uid]
        first = min(self._waiting, key=lambda uid: (self._waiting[uid].since, uid), default=None)
        if first is not None and self._waiting[first].first is None:
            self._waiting[first].first = time.monotonic()
        return first

    def _holders(self, *, now: datetime) -> list[Holder]:
        """Return all control planes that start on demand and are not asleep, by the caches."""
        holders = {}
        for obj in self._stores.control_planes:
            if _may_be_awake(obj) and (holder := self._holder(obj, now=now)) is not None:
                holders[holder.uid] = holder
        return [*holders.values(), *(admitted for uid, (_, admitted) in self._starts().items() if uid not in holders)]

    def _starts(self) -> dict[str, tuple[float, Holder]]:
        """Return the control planes admitted in the last 10 s.

        A start that takes longer is dropped from this list: it either shows in the status or has no API server.
        """
        oldest = time.monotonic() - _START_SECONDS
        self._starting = {uid: start for uid, start in self._starting.items() if start[0] > oldest}
        return self._starting

    def _holder(self, obj: Object, *, now: datetime) -> Holder | None:
        control_plane = as_recorded(obj)
        control_plane_class = class_in_force(control_plane, classes=self._stores.classes).chosen
        if start_of(control_plane, chosen=control_plane_class, gateway=self._gateway) is StartPolicy.ALWAYS:
            return None
        uid, sleep = control_plane.metadata.uid or "", control_plane.status.hibernation
        hibernated = find_condition(control_plane.status.conditions, HIBERNATED)
        if sleep is not None and hibernated is not None and hibernated.reason == Reason.WAKING:
            # If a sleep ends before its API server did, the condition was already False, so its time is not the start.
            begun = max(hibernated.last_transition_time, sleep.since)
            if now - begun >= timedelta(seconds=_BROKEN_SECONDS):
                return None
        falls = hibernated is not None and hibernated.reason in FALLS_ASLEEP
        # An end may never come, such as for a paused registration. Then others are evicted instead.
        ends = control_plane.metadata.deletion_timestamp or (sleep.since if sleep is not None and falls else None)
        is_exempt = is_rotated(control_plane) or self._spared.get(uid, 0.0) > time.monotonic()
        cannot_sleep = is_exempt or sleep is not None or control_plane.deleting or is_paused(control_plane)
        return Holder(
            uid,
            control_plane.name,
            self._memory_bytes(control_plane, chosen=control_plane_class),
            active=None if cannot_sleep else last_activity(control_plane, now=now),
            leaves=ends is not None and abs(now - ends) < timedelta(seconds=_LEAVES_SECONDS),
        )

    def _memory_bytes(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> int:
        """Return the guaranteed memory of its API servers in bytes. Processes have no guarantee, but count the same."""
        return int(quantity(resources_of(control_plane, chosen=chosen).memory_request)) * self._replicas


def _asked(control_plane: ControlPlane, *, now: datetime) -> datetime:
    """Return the time at which the wake was requested: by a client during this sleep, else now."""
    sleep = control_plane.status.hibernation
    wake = Requests.of(control_plane, start=StartPolicy.ON_DEMAND, now=now).wake
    return min(wake, now) if wake is not None and sleep is not None and wake > sleep.since else now


def _may_be_awake(obj: Object) -> bool:
    """Return whether a control plane is published and may have an API server.

    This cheap check filters out most control planes.
    """
    published = bool((obj.get("status") or {}).get("endpoint"))
    return published and stored_condition(obj, HIBERNATED).get("status") != "True"
