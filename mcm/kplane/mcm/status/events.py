"""Events on registrations or endpoints about their instances, for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from kplane.mcm.describe.kinds import instance_kinds
from kplane.mcm.reasons import Reason
from kplane.mcm.status.observer import InstanceObserver, Object
from kplane.mcm.status.report import shorten
from kplane.provider import Cluster, Resource
from kplane.provider.cluster.recorder import EventRecorder

__all__ = ["Events"]

_now = time.monotonic
_MESSAGE_LENGTH: Final = 1000
_CALM_SECONDS: Final = 60.0
"""Time of readiness after which an instance no longer counts as crash looping."""


class _EventKind(NamedTuple):
    type: Literal["Normal", "Warning"]
    reason: str


_EVENT_KINDS: Final = {
    Reason.INSTANCE_RUNNING: _EventKind("Normal", "InstanceStarted"),
    Reason.UNREADY: _EventKind("Warning", "InstanceUnready"),
    Reason.BACKOFF: _EventKind("Warning", "InstanceEnded"),
    Reason.CANNOT_START: _EventKind("Warning", "InstanceCannotStart"),
    Reason.STOP_FAILED: _EventKind("Warning", "InstanceStopFailed"),
    Reason.ENDED: _EventKind("Normal", "InstanceEnded"),
}


@dataclass(slots=True)
class _History:
    """Past of one cluster's instances, and the Events that were posted."""

    programs: str
    server: str
    about: Object | None
    started: bool = False
    told: Reason | None = None
    troubles: set[Reason] = field(default_factory=set)
    """Reasons of Events since the instance was last ready for a minute."""
    ready_since: float | None = None


class Events:
    """Observer that passes each report on to another observer, and posts Events.

    An instance that crashes repeatedly gets a single Event, and the next Event only after it was ready for a minute.
    The same holds for every other problem. The caller closes the recorder.
    """

    def __init__(
        self,
        observer: InstanceObserver,
        *,
        recorder: EventRecorder,
        resource: Resource,
        seen: Callable[[str], Object | None],
    ) -> None:
        """Events are on objects of `resource`; `seen` returns the last seen version of an object, by cluster name."""
        self._observer = observer
        self._recorder = recorder
        self._resource = resource
        self._seen = seen
        self._histories: dict[str, _History] = {}

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        """See `InstanceObserver.announce`."""
        programs = " and ".join(service.program for service in instance_kinds(cluster))
        self._histories[cluster.name] = _History(programs, cluster.config.server, self._seen(cluster.name))
        await self._observer.announce(cluster, version=version)

    async def confirm(self, cluster: Cluster) -> None:
        """See `InstanceObserver.confirm`."""
        await self._observer.confirm(cluster)

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        """See `InstanceObserver.update`."""
        self._observer.update(name, reason, message=message)
        history = self._histories.get(name)
        if history is None:
            return
        history.started = True
        now = _now()
        if reason is Reason.INSTANCE_RUNNING:
            history.ready_since = now if history.ready_since is None else history.ready_since
            if history.told is not reason:
                history.told = reason
                self._post(name, history.about, reason, f"{history.programs} started for {history.server}")
        elif reason is not Reason.STARTING:
            if history.ready_since is not None and now - history.ready_since >= _CALM_SECONDS:
                history.troubles.clear()
            history.ready_since = None
            if reason not in history.troubles:
                history.troubles.add(reason)
                history.told = reason
                self._post(name, history.about, reason, message)

    def report_failure(self, cluster: Cluster, message: str) -> None:
        """See `InstanceObserver.report_failure`."""
        self._observer.report_failure(cluster, message)
        # The recorder counts repetitions of the same message in a single Event.
        self._post(cluster.name, self._seen(cluster.name), Reason.CANNOT_START, message)

    async def end(self, name: str) -> None:
        """See `InstanceObserver.end`."""
        history = self._histories.pop(name, None)
        if history is not None and history.started:
            self._post(name, history.about, Reason.ENDED, f"{history.programs} ended for {history.server}")
        await self._observer.end(name)

    def _post(self, name: str, about: Object | None, reason: Reason, message: str) -> None:
        kind = _EVENT_KINDS.get(reason) or _EventKind("Warning", reason)
        target = about or self._seen(name) or {"metadata": {"name": name}}
        reference = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": target["metadata"],
        }
        self._recorder.event(reference, kind.type, kind.reason, shorten(message, length=_MESSAGE_LENGTH) or reason)
