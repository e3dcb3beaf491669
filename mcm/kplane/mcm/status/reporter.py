"""Writer of the status of registrations: before an instance starts, when it changes, and when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kplane.api import RegistrationMode
from kplane.mcm.describe.kinds import instance_kinds, services_of
from kplane.mcm.errors import NotAnnounced, RegistrationWithdrawn
from kplane.mcm.reasons import Reason
from kplane.mcm.status.observer import Object, check_wanted, wants_instance
from kplane.mcm.status.pace import WritePace
from kplane.mcm.status.report import Report, transition_of
from kplane.provider import Client, Cluster, Conflict, NotFound, ProviderError, Result, Unreachable
from kplane.provider.aio.running import kept_running
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.workers import Controller
from kplane.provider.errors import ClusterNotOwned
from kplane.provider.providers.kplane import REGISTRATIONS, UID_ATTRIBUTE, is_occupied, is_served

__all__ = ["StatusReporter"]

logger = logging.getLogger(__name__)

_MANAGER: Final = "mcm"
_DEADLINE_SECONDS: Final = 5.0
"""Deadline of a request. A silent management API delays starts and replacements by no more than this."""
_AT_ONCE: Final = 16
_TRIES: Final = 5
"""Number of attempts to write, while others write to the same registration."""
_WORKERS: Final = 4
_REFRESH_SECONDS: Final = 300.0
"""Age after which an outdated message of a condition is replaced."""
_YIELD_SECONDS: Final = 150.0
"""Time for which this mcm does not overwrite the report of another mcm's instance. It applies if this mcm has ended its
own instance or cannot see the Lease. By then the Lease has expired, after 120 s.
"""
_BLOCKED: Final = frozenset({Reason.FOREIGN_CONTROLLER_MANAGER, Reason.API_SERVER_UNREACHABLE, Reason.CANNOT_START})
"""Reasons with which no instance of this mcm runs. A status that reports a running instance is then another mcm's."""


class _Subject:
    """State of one registration."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.live: Report | None = None
        """Report of the instances that exist or are about to start."""
        self.announced: Mapping[str, Any] | None = None
        self.failure = ""
        """Why the instances cannot start, for the control plane with uid `failed_for`."""
        self.failed_for = ""
        self.answer: Object | None = None
        """The registration in the answer to the last write or read of this mcm."""
        self.written_at = 0.0
        """Time of the last write; 0: this run has not written."""
        self.wrote_running: bool | None = None
        """Whether the last write of this run reported a running instance; None: this run has not written."""
        self.yields_until = 0.0
        """Time until which the status is left to another mcm that runs the instance; infinite while that mcm holds the
        Lease.
        """
        self.unannounced = False
        """Whether the announcement is left to `confirm`, because another mcm reports an instance."""
        self.warned = False
        """Whether, since the last announcement, the log has a warning that another mcm runs the instance."""
        self.created_at = time.monotonic()
        self.pace = WritePace()

    @property
    def is_known_elsewhere(self) -> bool:
        """Whether no instance of this mcm runs, because another mcm is known to run an instance."""
        reason = self.live.reason if self.live is not None else None
        return reason is Reason.FOREIGN_CONTROLLER_MANAGER or (self.warned and reason in _BLOCKED)


class StatusReporter:
    """Writes the condition Running and `status.instance` of registrations.

    mcm announces an instance before its start. So if a registration is not ready and its status names no instance, no
    instance will start. The API server orders the write of mcm and the write of the operator. If the operator writes
    first, mcm's write returns a registration that is not ready any more. If mcm writes first, the operator reads the
    announcement.

    Only transitions are written, with server-side apply, as field manager of these two fields. If the management API
    refuses or does not answer, instances still end, and they start unless `has_to_announce`. Failed writes are retried.

    An mcm of one mode does not write to a registration that has an instance of the other mode. Each write names the
    version of the registration that it answers. So if two mcm announce an instance at once, the second write fails and
    that mcm sees the first.

    A shared mcm that finds another instance reported as running does not write until it holds the Lease in the control
    plane (`confirm`). Without the Lease its own instance cannot start, and the instance of another mcm may run.
    """

    def __init__(
        self,
        client: Client,
        *,
        registration: Callable[[str], Object | None],
        version: str | None = None,
        mine: Callable[[Object], bool] = lambda _: True,
        before_write: Callable[[str], float | None] = lambda _: None,
        mode: RegistrationMode = RegistrationMode.SHARED,
        has_to_announce: bool = False,
    ) -> None:
        """`registration` returns the last seen version of a registration. `version` is the default of `announce`.

        `mine` returns whether this process owns a registration. For registrations of other processes, it only writes
        that an instance of this run has ended. `before_write` is called with the name before each request. It returns
        for how many seconds this process owns the registration, and raises ClusterNotOwned if another process does.

        `mode` is the mode of the served registrations. With `has_to_announce`, an instance starts only after its
        announcement was written.
        """
        self._client = client
        self._registration = registration
        self._version = version
        self._mine = mine
        self._before_write = before_write
        self._mode = mode
        self._has_to_announce = has_to_announce
        self._subjects: dict[str, _Subject] = {}
        self._queue: FairQueue[str] = FairQueue(rate_limiter=ItemBackoff(initial_seconds=0.5, maximum_seconds=60.0))
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write changes inside the block."""
        controller = Controller(
            "report", self._reconcile, queue=self._queue, workers=_WORKERS, timeout_seconds=3 * _DEADLINE_SECONDS
        )
        async with kept_running("reports", controller.run):
            yield

    def look(self, name: str) -> None:
        """Check a registration that has changed, because its status about the instance may be wrong now."""
        self._queue.add(name)

    def take_over(self, names: Iterable[str]) -> None:
        """Check registrations that this process now owns, because another mcm may have written their status."""
        for name in names:
            subject = self._subjects.get(name)
            if subject is not None and subject.live is None:
                subject.written_at = 0.0
            self.look(name)

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        """Announce that an instance is about to start, with this version of kube-controller-manager.

        Raises RegistrationWithdrawn if the registration does not want the instance for this control plane any more, or
        not in this mode. Raises NotAnnounced if the write failed and the instance must not start without it.
        """
        name, uid = cluster.name, cluster.attributes.get(UID_ATTRIBUTE, "")
        services = services_of(cluster)
        self._check_wanted(name, uid=uid, services=services)
        subject = self._subject(name)
        version = version or self._version
        subject.announced = {
            "services": services,
            **({"controlPlaneUID": uid} if uid else {}),
            **({"version": version} if version is not None else {}),
            **({"mode": self._mode} if self._mode is RegistrationMode.DEDICATED else {}),
        }
        reason = Reason.CANNOT_START if subject.failure else Reason.STARTING
        message = subject.failure or f"{instance_kinds(cluster)[0].program} is starting"
        subject.live = Report(reason=reason, message=message, instance=subject.announced)
        # A new instance: the transitions of the former instance must not delay the writes for this instance.
        subject.pace.reset()
        registration = self._latest(name)
        subject.unannounced = registration is not None and self._is_of_another(subject, registration)
        subject.yields_until, subject.warned = math.inf if subject.unannounced else 0.0, False
        if not subject.unannounced and await self._write_announcement(name):
            self._check_wanted(name, uid=uid, services=services)

    async def confirm(self, cluster: Cluster) -> None:
        """Write the announcement that `announce` put off. Call it while the Lease is held, before each start.

        The other mcm removes `status.instance` when its instance has ended. So the announcement is written after the
        Lease was taken and before the start. Then either the operator sees the instance, or this mcm sees the
        withdrawal. Raises as `announce` does.
        """
        name, subject = cluster.name, self._subject(cluster.name)
        uid, services = cluster.attributes.get(UID_ATTRIBUTE, ""), services_of(cluster)
        if not subject.unannounced or subject.live is None:
            return
        self._check_wanted(name, uid=uid, services=services)
        message = f"{instance_kinds(cluster)[0].program} is starting"
        subject.live = Report(reason=Reason.STARTING, message=message, instance=subject.announced)
        subject.yields_until = 0.0
        written = await self._write_announcement(name)
        subject.unannounced = False
        if written:
            self._check_wanted(name, uid=uid, services=services)

    def _is_of_another(self, subject: _Subject, registration: Object) -> bool:
        """Whether a registration reports a running instance that it wants, and this run did not report.

        An earlier run of this mcm may have reported it. The Lease in the control plane shows the difference, because
        this mcm takes the Lease of its earlier run at once.
        """
        if self._mode is not RegistrationMode.SHARED or subject.wrote_running:
            return False
        reported, instance = transition_of(registration), (registration.get("status") or {}).get("instance")
        if reported is None or reported[0][0] != "True" or not instance:
            return False
        return wants_instance(registration, uid=str(instance.get("controlPlaneUID") or ""), mode=self._mode)

    def _check_wanted(self, name: str, *, uid: str, services: Sequence[str]) -> None:
        check_wanted(name, self._latest(name), uid=uid, services=services, mode=self._mode)

    async def _write_announcement(self, name: str) -> bool:
        """Write the announcement to the last seen registration. Return whether it was written."""
        try:
            await self._write_now(name)
        except NotFound:
            raise RegistrationWithdrawn(f"registration {name} is gone") from None
        except ProviderError as error:
            # After a conflict, the registration may have the announcement of another instance by now.
            if self._has_to_announce or isinstance(error, (ClusterNotOwned, Conflict)):
                raise NotAnnounced(f"failed to announce the instance of registration {name}: {error}") from error
            self._retry(name, error)
            return False
        return True

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        """Report a change of an announced instance."""
        subject = self._subject(name)
        subject.failure = ""
        subject.live = Report(reason=reason, message=message, instance=subject.announced)
        if not subject.is_known_elsewhere:
            subject.yields_until = 0.0
        elif subject.yields_until:
            # Without the Lease, this mcm cannot see whether the other mcm is alive.
            held = reason is Reason.FOREIGN_CONTROLLER_MANAGER
            subject.yields_until = math.inf if held else min(subject.yields_until, time.monotonic() + _YIELD_SECONDS)
        self._queue.add(name)

    def report_failure(self, cluster: Cluster, message: str) -> None:
        """Report why the instance cannot start. It stays announced, because its start is retried."""
        subject = self._subject(cluster.name)
        subject.failure, subject.failed_for = message, cluster.attributes.get(UID_ATTRIBUTE, "")
        self._queue.add(cluster.name)

    async def end(self, name: str) -> None:
        """Report that the instance has ended, unless another mcm runs an instance and writes the status."""
        subject = self._subject(name)
        elsewhere = subject.is_known_elsewhere
        subject.live, subject.unannounced = None, False
        if subject.yields_until:
            # Only a look at the Lease shows that another mcm runs the instance. Otherwise this mcm does not yield.
            subject.announced, subject.yields_until = None, time.monotonic() + _YIELD_SECONDS if elsewhere else 0.0
        try:
            await self._write_now(name)
        except NotFound:
            pass  # the registration is gone, and the watch has not delivered the deletion yet
        except ProviderError as error:
            self._retry(name, error)

    async def _write_now(self, name: str) -> None:
        """Write the status at once, without the queue."""
        later = await self._bring(name, at_once=True)
        if later is not None and later.requeue_after_seconds is not None:
            self._queue.add_after(name, later.requeue_after_seconds)

    def _retry(self, name: str, error: ProviderError) -> None:
        delay = self._queue.retry(name)
        logger.warning("failed to update the status of registration %s, retry in %.1f s: %s", name, delay, error)

    async def _reconcile(self, name: str) -> Result | None:
        try:
            return await self._bring(name, at_once=False)
        except NotFound:
            return None

    async def _bring(self, name: str, *, at_once: bool) -> Result | None:
        subject = self._subject(name)
        async with subject.lock:
            for _ in range(_TRIES - 1):
                try:
                    return await self._bring_about(name, subject, at_once=at_once)
                except Conflict as conflict:
                    await self._look_again(name, subject, conflict=conflict)
                except ClusterNotOwned:
                    if subject.live is not None:
                        raise
                    # The mcm that owns the registration by now writes its status.
                    subject.announced, subject.failure = None, ""
                    if self._latest(name) is None:
                        self._forget(name)
                    return None
            return await self._bring_about(name, subject, at_once=at_once)

    async def _bring_about(self, name: str, subject: _Subject, *, at_once: bool) -> Result | None:
        registration = self._latest(name)
        if registration is None:
            await self._part(name, subject)
            self._forget(name)
            return None
        if is_occupied(registration, mode=self._mode):
            return None  # the mcm of the other mode writes the status
        if (yielded := self._yielded(name, subject, registration)) is not None:
            return yielded
        report = self._wanted(subject, registration)
        wait = _until(subject, report, registration=registration, at_once=at_once)
        if wait is not None and wait > 0:
            return Result(wait)
        if report is None:
            return None
        if wait is not None:
            await self._write(name, subject, report.applied(registration))
        if report.reason is Reason.ENDED and subject.live is None:
            # Only after the write: if the write fails, its retry needs the announcement.
            subject.announced = None
        return None

    def _yielded(self, name: str, subject: _Subject, registration: Object) -> Result | None:
        """Return when to look again if another mcm writes the status of this registration; None: this mcm writes it.

        Two mcm may follow one registration, because their selectors overlap. The mcm that holds the Lease in the
        control plane runs the instance. If both mcm wrote the condition, it would change for ever. So the other mcm
        leaves a condition alone that reports a running instance, and logs why its own instance does not run.

        An mcm that cannot reach the control plane does not see the holder of the Lease. It writes its reason once,
        because its earlier run may have reported the instance. If the condition then reports a running instance again,
        another mcm has written that. The other mcm may crash without a write. So this mcm writes the reason again after
        `_YIELD_SECONDS`, and the other mcm corrects it if it is alive.
        """
        reason = subject.live.reason if subject.live is not None else None
        held, blocked = reason is Reason.FOREIGN_CONTROLLER_MANAGER, reason in _BLOCKED
        reported = transition_of(registration)
        runs = reported is not None and reported[0][0] == "True"
        overwritten = blocked and not subject.yields_until and subject.wrote_running is False
        finding = held and subject.unannounced and not (subject.yields_until and subject.warned)
        if runs and (overwritten or finding):
            if not (subject.warned and overwritten):
                logger.warning(
                    "another mcm runs the instance of registration %s and writes its status: %s;"
                    " have no two mcm select one registration",
                    name,
                    subject.live.sentence if subject.live is not None else "",
                )
            subject.yields_until = math.inf if held else time.monotonic() + _YIELD_SECONDS
            subject.unannounced, subject.warned = True, True
        until = subject.yields_until
        if subject.live is None and not subject.failure and self._is_of_another(subject, registration):
            # mcm has just started: the reported instance is about to start here, or belongs to another mcm.
            until = max(until, subject.created_at + _YIELD_SECONDS)
        left = until - time.monotonic()
        # If the other mcm reports the end of its instance, this mcm may write.
        if left <= 0.0 or (blocked and not runs):
            if subject.yields_until:
                # The next write counts as the first again: only an answer to it shows that the other mcm is alive.
                subject.yields_until, subject.wrote_running = 0.0, None
            return None
        return Result(min(left, _REFRESH_SECONDS))

    async def _part(self, name: str, subject: _Subject) -> None:
        """Report the end of the instance in a registration that mcm no longer sees: it may have lost a label."""
        if subject.live is None and subject.announced is not None:
            registration = await self._read(name)
            if registration is not None and _announces(registration, subject.announced):
                with contextlib.suppress(NotFound):
                    await self._write(name, subject, Report(reason=Reason.ENDED).applied(registration))
            subject.announced = None

    def _wanted(self, subject: _Subject, registration: Object) -> Report | None:
        if subject.live is not None:
            if subject.live.reason is Reason.FOREIGN_CONTROLLER_MANAGER and subject.announced is None:
                # Another mcm may hold the Lease. The operator must not take that mcm's instance for ended.
                return replace(subject.live, instance=(registration.get("status") or {}).get("instance"))
            return subject.live
        reported = transition_of(registration)
        # In a registration of the other mode, this mcm only writes about its own leftover instance.
        writable = is_served(registration, mode=self._mode) or (reported is not None and bool(reported[0][2]))
        mine = writable and self._mine(registration)
        if mine and subject.failure and wants_instance(registration, uid=subject.failed_for, mode=self._mode):
            return Report(reason=Reason.CANNOT_START, message=subject.failure, instance=subject.announced)
        subject.failure = ""
        if reported is None:
            return None
        # An instance that an earlier run announced has ended too, because instances end with their mcm.
        still_ours = subject.announced is not None and _announces(registration, subject.announced)
        return Report(reason=Reason.ENDED) if mine or still_ours else None

    async def _look_again(self, name: str, subject: _Subject, *, conflict: Conflict) -> None:
        """Read the registration after a conflict, without waiting for the watch.

        Raises NotFound if the registration is gone, and the conflict if the read fails.
        """
        try:
            registration = await self._read(name)
        except ProviderError as error:
            raise conflict from error
        if registration is None:
            raise NotFound(404, "NotFound", f"registration {name} is gone")
        subject.answer = registration

    async def _read(self, name: str) -> Object | None:
        # A list, because mcm may list and watch registrations, and may not get them.
        async with self._turn(name):
            registrations = await self._client.list(REGISTRATIONS, field_selector=f"metadata.name={name}")
        return registrations.items[0] if registrations.items else None

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Limit the time of a request about a registration, and the number of concurrent requests."""
        most_seconds = self._before_write(name)
        # Half of the time: if an instance ended because the time runs out, its end must be reported before.
        seconds = _DEADLINE_SECONDS if most_seconds is None else min(_DEADLINE_SECONDS, most_seconds / 2)
        try:
            async with asyncio.timeout(seconds), self._slots:
                yield
        except TimeoutError as error:
            raise Unreachable(f"no answer within {seconds:g} s", kind="timeout") from error

    async def _write(self, name: str, subject: _Subject, body: dict[str, Any]) -> None:
        async with self._turn(name):
            subject.answer = await self._client.apply(
                REGISTRATIONS, body, subresource="status", field_manager=_MANAGER, force=True
            )
        subject.written_at = time.monotonic()
        subject.wrote_running = body["status"]["conditions"][0]["status"] == "True"
        subject.pace.note_write()
        self._queue.forget(name)

    def _latest(self, name: str) -> Object | None:
        """Return the newest version of the registration, from the watch or from an answer."""
        seen, subject = self._registration(name), self._subjects.get(name)
        answer = subject.answer if subject is not None else None
        if seen is None or answer is None or seen["metadata"].get("uid") != answer["metadata"].get("uid"):
            return seen
        return answer if _version(answer) > _version(seen) else seen

    def _subject(self, name: str) -> _Subject:
        return self._subjects.setdefault(name, _Subject())

    def _forget(self, name: str) -> None:
        subject = self._subjects.get(name)
        if subject is not None and subject.live is None:
            del self._subjects[name]


def _until(subject: _Subject, wanted: Report | None, *, registration: Object, at_once: bool) -> float | None:
    """Return the seconds until the report has to be written; None if no write is needed."""
    if wanted is None:
        return None
    # A report of an earlier run is no announcement, because it may have been revoked by now.
    fresh = subject.written_at > 0 or subject.live is None
    now, reported = time.monotonic(), transition_of(registration) if fresh else None
    if reported is not None and reported[0] == wanted.transition:
        return max(0.0, subject.written_at + _REFRESH_SECONDS - now) if reported[1] != wanted.sentence else None
    return 0.0 if at_once else subject.pace.delay()


def _announces(registration: Object, instance: Mapping[str, Any]) -> bool:
    reported = transition_of(registration)
    return reported is not None and reported[0][2] == Report(reason=Reason.ENDED, instance=instance).transition[2]


def _version(registration: Object) -> int:
    # Resource versions are increasing decimal numbers: guaranteed since Kubernetes 1.35, and always true with etcd.
    return int(registration["metadata"]["resourceVersion"])
