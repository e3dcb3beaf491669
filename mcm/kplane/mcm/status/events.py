"""Events on registrations, or on endpoints: what becomes of their instances, for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from kplane.mcm.describe.services import served
from kplane.mcm.fleet import Witness
from kplane.mcm.reasons import Reason
from kplane.mcm.status.report import shorten
from kplane.mcm.status.reporter import Object
from kplane.provider import Cluster, EventRecorder, Resource

__all__ = ["Events"]

_now = time.monotonic
_MESSAGE_LENGTH: Final = 1000
_CALM_SECONDS: Final = 60.0
"""An instance that was ready for so long is not in a loop of crashes any more."""


class _Saying(NamedTuple):
    type: Literal["Normal", "Warning"]
    reason: str


_SAYINGS: Final = {
    Reason.INSTANCE_RUNNING: _Saying("Normal", "InstanceStarted"),
    Reason.UNREADY: _Saying("Warning", "InstanceUnready"),
    Reason.BACKOFF: _Saying("Warning", "InstanceEnded"),
    Reason.CANNOT_START: _Saying("Warning", "InstanceCannotStart"),
    Reason.CANNOT_END: _Saying("Warning", "InstanceCannotEnd"),
    Reason.ENDED: _Saying("Normal", "InstanceEnded"),
}


@dataclass(slots=True)
class _Course:
    """What happened to one instance, and what was told of it."""

    programs: str
    server: str
    about: Object | None
    started: bool = False
    told: Reason | None = None
    troubles: set[Reason] = field(default_factory=set)
    """Those that were told since it was ready for long."""
    ready_since: float | None = None


class Events:
    """Passes everything on to another witness, and posts an Event where something happened.

    An instance that ends by itself again and again has one Event of that, and the next one after it was ready for a
    minute; so it is with each kind of trouble. The recorder is closed by whoever made it.
    """

    def __init__(
        self,
        witness: Witness,
        *,
        recorder: EventRecorder,
        resource: Resource,
        seen: Callable[[str], Object | None],
    ) -> None:
        """Events are on objects of `resource`, and `seen` returns one as it was last seen."""
        self._witness = witness
        self._recorder = recorder
        self._resource = resource
        self._seen = seen
        self._courses: dict[str, _Course] = {}

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        """See `Witness.announce`."""
        programs = " and ".join(service.program for service in served(cluster))
        self._courses[cluster.name] = _Course(programs, cluster.config.server, self._seen(cluster.name))
        await self._witness.announce(cluster, version=version)

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        """See `Witness.say`."""
        self._witness.say(name, reason, message=message)
        course = self._courses.get(name)
        if course is None:
            return
        course.started = True
        now = _now()
        if reason is Reason.INSTANCE_RUNNING:
            course.ready_since = now if course.ready_since is None else course.ready_since
            if course.told is not reason:
                course.told = reason
                self._post(name, course.about, reason, f"{course.programs} started for {course.server}")
        elif reason is not Reason.STARTING:
            if course.ready_since is not None and now - course.ready_since >= _CALM_SECONDS:
                course.troubles.clear()
            course.ready_since = None
            if reason not in course.troubles:
                course.troubles.add(reason)
                course.told = reason
                self._post(name, course.about, reason, message)

    def say_failure(self, cluster: Cluster, message: str) -> None:
        """See `Witness.say_failure`."""
        self._witness.say_failure(cluster, message)
        # The same sentence raises the count of one Event.
        self._post(cluster.name, self._seen(cluster.name), Reason.CANNOT_START, message)

    async def end(self, name: str) -> None:
        """See `Witness.end`."""
        course = self._courses.pop(name, None)
        if course is not None and course.started:
            self._post(name, course.about, Reason.ENDED, f"{course.programs} ended for {course.server}")
        await self._witness.end(name)

    def _post(self, name: str, about: Object | None, reason: Reason, message: str) -> None:
        saying = _SAYINGS.get(reason) or _Saying("Warning", reason)
        found = about or self._seen(name) or {"metadata": {"name": name}}
        named = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": found["metadata"],
        }
        self._recorder.event(named, saying.type, saying.reason, shorten(message, length=_MESSAGE_LENGTH) or reason)
