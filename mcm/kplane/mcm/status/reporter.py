"""Writes the status of registrations: before an instance starts, when it changes, and when it has ended."""

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
"""Of one write, so that a silent management API delays starts and replacements no longer."""
_AT_ONCE: Final = 16
_TRIES: Final = 5
"""Of a write, while others write to the same registration."""
_WORKERS: Final = 4
_REFRESH_SECONDS: Final = 300.0
"""So long a condition keeps a message that is no longer the last one."""
_YIELD_SECONDS: Final = 150.0
"""How long an instance that another mcm reports is left to it, if this mcm has ended its own or sees no Lease. The
Lease has expired after 120 s.
"""
_BLOCKED: Final = frozenset({Reason.FOREIGN_CONTROLLER_MANAGER, Reason.API_SERVER_UNREACHABLE, Reason.CANNOT_START})
"""With these reasons no instance of this mcm runs. One that is reported as running meanwhile is another mcm's."""


class _Subject:
    """What is known of one registration."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.live: Report | None = None
        """Of the instance that is there, or about to start."""
        self.announced: Mapping[str, Any] | None = None
        self.failure = ""
        """Why it cannot start, for the control plane with uid `failed_for`."""
        self.failed_for = ""
        self.answer: Object | None = None
        """The registration as the answer to our last write had it, or to a question of ours."""
        self.written_at = 0.0
        """0: this run has written nothing."""
        self.wrote_running: bool | None = None
        """Whether our last write said that the instance runs; None: this run has written nothing."""
        self.yields_until = 0.0
        """Until when another mcm writes the status, which runs the instance; infinite while ours is held for it."""
        self.unannounced = False
        """The announcement is not written, because another mcm reports an instance: `confirm` writes it."""
        self.warned = False
        """It is known that another mcm runs the instance, and the log says so, since the last announcement."""
        self.created_at = time.monotonic()
        self.pace = WritePace()

    @property
    def is_known_elsewhere(self) -> bool:
        """Whether an instance of this mcm does not run, because another mcm is known to run it."""
        reason = self.live.reason if self.live is not None else None
        return reason is Reason.FOREIGN_CONTROLLER_MANAGER or (self.warned and reason in _BLOCKED)


class StatusReporter:
    """Writes the condition Running and `status.instance` of registrations.

    mcm announces an instance before it starts. So if a registration is not ready and its status names no instance, no
    instance will come. The API server orders the two writes. If the operator's write comes first, mcm reads in the
    answer to its own that the registration is not ready any more. If mcm's comes first, the operator reads that.

    Only transitions are written, with server-side apply, as manager of these two fields alone. If the management API
    refuses or is silent, instances still end, and start unless `has_to_announce`. The writes are retried.

    An mcm of one mode leaves a registration alone that has an instance of the other mode. Each write names the version
    of the registration that it answers. So if two mcm announce an instance at once, the second one sees the first.

    A shared mcm that finds another instance reported as running writes nothing until it holds the Lease in the control
    plane (`confirm`). Without the Lease its own instance cannot start, and that of another mcm may run.
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
        """`registration` returns a registration as it was last seen. `version` is the default of `announce`.

        `mine` says whether this process owns a registration. For one that it does not own, it writes only that an
        instance of this run has ended. `before_write` is called with the name before each request. It raises
        ClusterNotOwned if another process owns the registration, and returns for how many seconds this one does.

        `mode` is the mode of the registrations served. With `has_to_announce`, an instance starts only after its
        registration was written.
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
        """Write what changes, while within."""
        controller = Controller(
            "report", self._reconcile, queue=self._queue, workers=_WORKERS, timeout_seconds=3 * _DEADLINE_SECONDS
        )
        async with kept_running("reports", controller.run):
            yield

    def look(self, name: str) -> None:
        """Check a registration that changed: what it says of its instance may be wrong."""
        self._queue.add(name)

    def take_over(self, names: Iterable[str]) -> None:
        """Check registrations that this process owns from now on, and that another mcm may have written."""
        for name in names:
            subject = self._subjects.get(name)
            if subject is not None and subject.live is None:
                subject.written_at = 0.0
            self.look(name)

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        """Say that an instance is about to start, of that version of kube-controller-manager.

        Raises RegistrationWithdrawn if the registration wants none for this control plane any more, or none of this
        mode; NotAnnounced if it is not known to say so, and has to.
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
        # Another instance: what the one before went through does not keep back what this one does.
        subject.pace.reset()
        registration = self._latest(name)
        subject.unannounced = registration is not None and self._is_of_another(subject, registration)
        subject.yields_until, subject.warned = math.inf if subject.unannounced else 0.0, False
        if not subject.unannounced and await self._write_announcement(name):
            self._check_wanted(name, uid=uid, services=services)

    async def confirm(self, cluster: Cluster) -> None:
        """Write the announcement that `announce` left to another mcm. Call it with the Lease, before each start.

        The other mcm takes `status.instance` away when its instance has ended. So the announcement is written after the
        Lease was taken and before the start: then the operator knows of the instance, or this one of the withdrawal.
        Raises as `announce` does.
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
        """Whether a registration wants the instance that it reports as running, and this run did not report it.

        An earlier run of this mcm may have reported it. The difference shows in the control plane: this mcm takes the
        Lease of its earlier run at once.
        """
        if self._mode is not RegistrationMode.SHARED or subject.wrote_running:
            return False
        said, instance = transition_of(registration), (registration.get("status") or {}).get("instance")
        if said is None or said[0][0] != "True" or not instance:
            return False
        return wants_instance(registration, uid=str(instance.get("controlPlaneUID") or ""), mode=self._mode)

    def _check_wanted(self, name: str, *, uid: str, services: Sequence[str]) -> None:
        check_wanted(name, self._latest(name), uid=uid, services=services, mode=self._mode)

    async def _write_announcement(self, name: str) -> bool:
        """Have the registration say it, as an answer to what it says now; whether it does."""
        try:
            await self._write_now(name)
        except NotFound:
            raise RegistrationWithdrawn(f"registration {name} is gone") from None
        except ProviderError as error:
            # After a conflict it may be another instance that is announced by now.
            if self._has_to_announce or isinstance(error, (ClusterNotOwned, Conflict)):
                raise NotAnnounced(f"failed to announce the instance of registration {name}: {error}") from error
            self._retry(name, error)
            return False
        return True

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        """Say how the instance is now, which was announced."""
        subject = self._subject(name)
        subject.failure = ""
        subject.live = Report(reason=reason, message=message, instance=subject.announced)
        if not subject.is_known_elsewhere:
            subject.yields_until = 0.0
        elif subject.yields_until:
            # Without the Lease it is not seen whether the other mcm lives.
            held = reason is Reason.FOREIGN_CONTROLLER_MANAGER
            subject.yields_until = math.inf if held else min(subject.yields_until, time.monotonic() + _YIELD_SECONDS)
        self._queue.add(name)

    def report_failure(self, cluster: Cluster, message: str) -> None:
        """Say why the instance cannot start. It stays announced, because its start is retried."""
        subject = self._subject(cluster.name)
        subject.failure, subject.failed_for = message, cluster.attributes.get(UID_ATTRIBUTE, "")
        self._queue.add(cluster.name)

    async def end(self, name: str) -> None:
        """Say that the instance has ended, unless another mcm runs one and writes the status."""
        subject = self._subject(name)
        elsewhere = subject.is_known_elsewhere
        subject.live, subject.unannounced = None, False
        if subject.yields_until:
            # Without a look at the Lease it is not known that another mcm runs: nothing is left to it then.
            subject.announced, subject.yields_until = None, time.monotonic() + _YIELD_SECONDS if elsewhere else 0.0
        try:
            await self._write_now(name)
        except NotFound:
            pass  # the watch has not told of it yet
        except ProviderError as error:
            self._retry(name, error)

    async def _write_now(self, name: str) -> None:
        """Write the status without waiting for the queue."""
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
                    # The mcm that owns it by now writes its status.
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
            return None  # the other mcm writes its status
        if (yielded := self._yielded(name, subject, registration)) is not None:
            return yielded
        wanted = self._wanted(subject, registration)
        wait = _until(subject, wanted, registration=registration, at_once=at_once)
        if wait is not None and wait > 0:
            return Result(wait)
        if wanted is None:
            return None
        if wait is not None:
            await self._write(name, subject, wanted.applied(registration))
        if wanted.reason is Reason.ENDED and subject.live is None:
            # Only after the write, which is retried if it fails.
            subject.announced = None
        return None

    def _yielded(self, name: str, subject: _Subject, registration: Object) -> Result | None:
        """Return when to look again if another mcm writes the status of this registration; None: this one does.

        Two mcm may follow one registration, because their selectors overlap. One holds the Lease in the control plane
        and runs the instance. If both wrote the condition, it would change for ever. So the other one leaves the
        condition alone when it finds there that an instance runs, and says in its log why its own does not.

        An mcm that cannot reach the control plane does not see who holds the Lease. It writes its reason once, because
        its earlier run may have reported the instance. If the condition says again that an instance runs, another mcm
        has written that. That mcm may end without a word. So the reason is written again after `_YIELD_SECONDS`, and
        an mcm that lives corrects it.
        """
        reason = subject.live.reason if subject.live is not None else None
        held, blocked = reason is Reason.FOREIGN_CONTROLLER_MANAGER, reason in _BLOCKED
        said = transition_of(registration)
        runs = said is not None and said[0][0] == "True"
        overwritten = blocked and not subject.yields_until and subject.wrote_running is False
        found = held and subject.unannounced and not (subject.yields_until and subject.warned)
        if runs and (overwritten or found):
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
            # mcm has just started: the instance of this registration comes, or is that of another mcm.
            until = max(until, subject.created_at + _YIELD_SECONDS)
        left = until - time.monotonic()
        # What the other one says when its instance has ended is the sign that it makes way.
        if left <= 0.0 or (blocked and not runs):
            if subject.yields_until:
                # What is written now is the first word again: only an answer to it shows that the other mcm lives.
                subject.yields_until, subject.wrote_running = 0.0, None
            return None
        return Result(min(left, _REFRESH_SECONDS))

    async def _part(self, name: str, subject: _Subject) -> None:
        """Write that the instance has ended to a registration that is out of sight: it may have lost a label."""
        if subject.live is None and subject.announced is not None:
            registration = await self._read(name)
            if registration is not None and _announces(registration, subject.announced):
                with contextlib.suppress(NotFound):
                    await self._write(name, subject, Report(reason=Reason.ENDED).applied(registration))
            subject.announced = None

    def _wanted(self, subject: _Subject, registration: Object) -> Report | None:
        if subject.live is not None:
            if subject.live.reason is Reason.FOREIGN_CONTROLLER_MANAGER and subject.announced is None:
                # The holder of the Lease may be another mcm: the operator must not take its instance for ended.
                return replace(subject.live, instance=(registration.get("status") or {}).get("instance"))
            return subject.live
        said = transition_of(registration)
        # In a registration of the other mode, only a leftover instance of this mcm is ours to write.
        ours = is_served(registration, mode=self._mode) or (said is not None and bool(said[0][2]))
        mine = ours and self._mine(registration)
        if mine and subject.failure and wants_instance(registration, uid=subject.failed_for, mode=self._mode):
            return Report(reason=Reason.CANNOT_START, message=subject.failure, instance=subject.announced)
        subject.failure = ""
        if said is None:
            return None
        # Of one of ours that an earlier run announced nothing is left either: the instances end with their mcm.
        still_ours = subject.announced is not None and _announces(registration, subject.announced)
        return Report(reason=Reason.ENDED) if mine or still_ours else None

    async def _look_again(self, name: str, subject: _Subject, *, conflict: Conflict) -> None:
        """Read the registration after a conflict, without waiting for the watch.

        Raises NotFound if it is gone, and the conflict if it is not known.
        """
        try:
            found = await self._read(name)
        except ProviderError as error:
            raise conflict from error
        if found is None:
            raise NotFound(404, "NotFound", f"registration {name} is gone")
        subject.answer = found

    async def _read(self, name: str) -> Object | None:
        # By a list: mcm has the right to list and watch registrations, and not to get one.
        async with self._turn(name):
            found = await self._client.list(REGISTRATIONS, field_selector=f"metadata.name={name}")
        return found.items[0] if found.items else None

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Bound a request about a registration, and how many there are at once."""
        most_seconds = self._before_write(name)
        # Half of it: of an instance that ended because time runs out, that is to be known before it has.
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
        """Return the registration as it was seen last, by the watch or in an answer."""
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
    """Return in how many seconds to write what is wanted; None: there is no need to."""
    if wanted is None:
        return None
    # What an earlier run wrote announces nothing: it may have been revoked by now.
    fresh = subject.written_at > 0 or subject.live is None
    now, said = time.monotonic(), transition_of(registration) if fresh else None
    if said is not None and said[0] == wanted.transition:
        return max(0.0, subject.written_at + _REFRESH_SECONDS - now) if said[1] != wanted.sentence else None
    return 0.0 if at_once else subject.pace.delay()


def _announces(registration: Object, instance: Mapping[str, Any]) -> bool:
    said = transition_of(registration)
    return said is not None and said[0][2] == Report(reason=Reason.ENDED, instance=instance).transition[2]


def _version(registration: Object) -> int:
    # A decimal number that grows: promised by Kubernetes since 1.35, true of etcd always.
    return int(registration["metadata"]["resourceVersion"])
