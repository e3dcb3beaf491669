"""Room for control planes that are awake: how many may be, who has to sleep for others, and who wakes next.

Only control planes that start on demand are counted. The others run at all times, and are never sent to sleep.
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
"""The gateway says once a minute that a control plane is in use; one or two reports may be lost."""
_START_SECONDS: Final = 10.0
"""So long a start counts at most: an API server that does not get ready holds up no other one."""
_BROKEN_SECONDS: Final = 300.0
"""So long one that wakes takes room. Its API server may never get ready, and then it cannot be sent to sleep."""
_NEXT_SECONDS: Final = 1.0
_LATER_SECONDS: Final = 20.0
"""When the first of those that wait asks again, and when the others do. They hear of it too when one has started."""
_FIRST_SECONDS: Final = 60.0
"""So long the first one of those that wait holds up smaller ones that fit: its requests wait no longer."""
_FORGOTTEN_SECONDS: Final = 60.0
"""One that has not asked for so long does not want to wake any more."""
_SPARED_SECONDS: Final = 60.0
"""So long one that cannot sleep is not asked to."""
_ASKED_SECONDS: Final = 45.0
"""So long one that is asked to sleep may take until it begins to. A look inside that fails is repeated meanwhile."""
_LEAVES_SECONDS: Final = 60.0
"""So long others count on the room of one that falls asleep or is being deleted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be awake; None: any number."""

    control_planes: int | None = None
    memory_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self.control_planes is not None or self.memory_bytes is not None


@dataclass(frozen=True, slots=True)
class Holder:
    """A control plane whose API server runs, or starts, or ends."""

    uid: str
    name: str
    memory_bytes: int
    active: datetime | None = None
    """When it was used or woken last; None: that is not known, or it cannot sleep now."""
    leaves: bool = False
    """It falls asleep or is being deleted, and has not for long."""


def fits(holders: Collection[Holder], *, limits: Limits) -> bool:
    """Tell whether so many may be awake. One alone may be larger than all memory: it would wait for ever."""
    count, memory = len(holders), sum(holder.memory_bytes for holder in holders)
    if count <= 1:
        return True
    within = limits.control_planes is None or count <= limits.control_planes
    return within and (limits.memory_bytes is None or memory <= limits.memory_bytes)


def displaced(
    holders: Iterable[Holder], *, limits: Limits, now: datetime, newcomer: Holder | None = None
) -> list[Holder]:
    """Return those that have to fall asleep for a newcomer, or for the limits alone: the longest idle first.

    It returns none of a control plane that is in use, and no more than needed. For a newcomer it returns none if they
    would make too little room.
    """
    staying = [holder for holder in holders if not holder.leaves]
    if newcomer is not None:
        staying.append(newcomer)
    idle = [holder for holder in staying if holder.active is not None and now - holder.active >= _IN_USE]
    chosen: list[Holder] = []
    for holder in sorted(idle, key=lambda each: (each.active, each.uid)):
        if fits(staying, limits=limits):
            break
        if holder is not newcomer:
            staying.remove(holder)
            chosen.append(holder)
    return chosen if newcomer is None or fits(staying, limits=limits) else []


@dataclass(slots=True)
class _Waiting:
    holder: Holder
    since: datetime
    asked: float
    """When it asked last, by the clock that never goes back."""
    first: float | None = None
    """Since when no other one was asked to wake before it, by that clock."""


class Room:
    """Lets control planes wake in the order in which they were asked to, and sends others to sleep for them.

    All that has to last is in the statuses. An operator that comes back asks each control plane again.
    """

    def __init__(self, context: OperatorContext, *, limits: Limits, at_once: int, replicas: int = 1) -> None:
        """`at_once` API servers may start at the same time. `replicas` run for each control plane."""
        self._stores = context.stores
        self._gateway = context.gateway
        self._queue = context.queues.control_planes
        self._limits = limits
        self._at_once = at_once
        self._replicas = replicas
        self._waiting: dict[str, _Waiting] = {}
        self._starting: dict[str, tuple[float, Holder]] = {}
        """When those were let in that are not awake yet."""
        self._leaving: dict[str, float] = {}
        """Since when those are asked to sleep that do not yet."""
        self._spared: dict[str, float] = {}
        """Until when those that cannot sleep are left alone."""

    def settle(
        self, control_plane: ControlPlane, decision: Decision, *, chosen: ControlPlaneClass | None, now: datetime
    ) -> Decision:
        """Return the decision about a control plane as the limits allow it."""
        uid, status = control_plane.metadata.uid or "", control_plane.status
        if decision.sleep is not None or decision.always or status.endpoint is None:
            self.forget(uid)
            return decision
        if is_true(status.conditions, HIBERNATED):
            return self._wake(control_plane, decision, chosen=chosen, now=now)
        self._waiting.pop(uid, None)
        if status.hibernation is not None:
            # A start may take as long as others count as in use. Its clients come after that.
            self.spare(uid)
            return decision
        self._starting.pop(uid, None)
        return self._stay(control_plane, decision, now=now) if self._limits.any else decision

    def spare(self, uid: str | None) -> None:
        """Leave a control plane alone for a while, because something keeps it awake."""
        self._spared[uid or ""] = time.monotonic() + _SPARED_SECONDS
        self._leaving.pop(uid or "", None)

    def forget(self, uid: str | None) -> None:
        """Remember nothing of a control plane that sleeps, or is gone."""
        for known in (self._waiting, self._starting, self._leaving, self._spared):
            known.pop(uid or "", None)

    def call_next(self, *, after: str | None) -> None:
        """Have the first one that waits ask again, after the pass of another one: there may be room now."""
        first = self._first()
        if first is not None and first != after:
            self._queue.add(("", self._waiting[first].holder.name))

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
        """Say in a clause why a control plane cannot wake yet; None if it can."""
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
        """Tell whether a control plane goes before the first one: that had its time, and there is no room for it."""
        if first.first is None or time.monotonic() - first.first < _FIRST_SECONDS:
            return False
        holders, limits = self._holders(now=now), self._limits
        return fits([*holders, newcomer], limits=limits) and not fits([*holders, first.holder], limits=limits)

    def _stay(self, control_plane: ControlPlane, decision: Decision, *, now: datetime) -> Decision:
        """Send a control plane to sleep that is awake, if others need its room and no client uses it."""
        uid = control_plane.metadata.uid or ""
        asked = uid in self._leaving
        first = self._first()
        holders = self._holders(now=now)
        if first is None:
            chosen = displaced(holders, limits=self._limits, now=now)
            asked = any(holder.uid == uid for holder in chosen)
            self._ask_to_sleep([holder for holder in chosen if holder.uid != uid])
        mine = next((holder for holder in holders if holder.uid == uid), None)
        if asked and mine is not None and mine.active is not None and now - mine.active >= _IN_USE:
            sleep = new_sleep(control_plane, reason=HibernationReason.ROOM_NEEDED, now=now)
            return Decision(sleep, begins=True)
        self._leaving.pop(uid, None)
        if first is not None or fits(holders, limits=self._limits):
            return decision
        later = now + timedelta(seconds=_LATER_SECONDS)
        return Decision(None, decision.why, again=min(later, decision.again or later))

    def _ask_to_sleep(self, holders: Iterable[Holder]) -> None:
        """Ask each once. One that does not sleep for so long is left alone, so that others are asked."""
        now = time.monotonic()
        for holder in holders:
            if holder.uid not in self._leaving:
                self._leaving[holder.uid] = now
                self._queue.add(("", holder.name))
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
        """Return all control planes that start on demand and are not asleep, by what is known of them now."""
        found = {}
        for obj in self._stores.control_planes:
            if _may_be_awake(obj) and (holder := self._holder(obj, now=now)) is not None:
                found[holder.uid] = holder
        return [*found.values(), *(each for uid, (_, each) in self._starts().items() if uid not in found)]

    def _starts(self) -> dict[str, tuple[float, Holder]]:
        """Return those that were let in a moment ago. One that got no further by then has no API server."""
        oldest = time.monotonic() - _START_SECONDS
        self._starting = {uid: start for uid, start in self._starting.items() if start[0] > oldest}
        return self._starting

    def _holder(self, obj: Object, *, now: datetime) -> Holder | None:
        control_plane = as_recorded(obj)
        chosen = class_in_force(control_plane, classes=self._stores.classes).chosen
        if start_of(control_plane, chosen=chosen, gateway=self._gateway) is StartPolicy.ALWAYS:
            return None
        uid, sleep = control_plane.metadata.uid or "", control_plane.status.hibernation
        told = find_condition(control_plane.status.conditions, HIBERNATED)
        if sleep is not None and told is not None and told.reason == Reason.WAKING:
            # Where a sleep ends before its API server did, the condition was False before.
            begun = max(told.last_transition_time, sleep.since)
            if now - begun >= timedelta(seconds=_BROKEN_SECONDS):
                return None
        falls = told is not None and told.reason in FALLS_ASLEEP
        # It may wait for ever, such as for a registration that is paused. Others make room then.
        ends = control_plane.metadata.deletion_timestamp or (sleep.since if sleep is not None and falls else None)
        kept = is_rotated(control_plane) or self._spared.get(uid, 0.0) > time.monotonic()
        fixed = kept or sleep is not None or control_plane.deleting or is_paused(control_plane)
        return Holder(
            uid,
            control_plane.name,
            self._memory_bytes(control_plane, chosen=chosen),
            active=None if fixed else last_activity(control_plane, now=now),
            leaves=ends is not None and abs(now - ends) < timedelta(seconds=_LEAVES_SECONDS),
        )

    def _memory_bytes(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> int:
        """Return what its API servers are guaranteed of memory. Processes are not, and count as much."""
        return int(quantity(resources_of(control_plane, chosen=chosen).memory_request)) * self._replicas


def _asked(control_plane: ControlPlane, *, now: datetime) -> datetime:
    """Return since when a control plane is to wake: a client asked during this sleep, or something came up now."""
    sleep = control_plane.status.hibernation
    wake = Requests.of(control_plane, start=StartPolicy.ON_DEMAND, now=now).wake
    return min(wake, now) if wake is not None and sleep is not None and wake > sleep.since else now


def _may_be_awake(obj: Object) -> bool:
    """Tell whether a control plane that is published has an API server; of most of them this is all that is read."""
    published = bool((obj.get("status") or {}).get("endpoint"))
    return published and stored_condition(obj, HIBERNATED).get("status") != "True"
