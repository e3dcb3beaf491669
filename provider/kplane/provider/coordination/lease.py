"""A Lease of the API, which one process holds at a time.

The protocol is client-go's tools/leaderelection, and both read each other's Leases. Every process trusts only its own
clock. The holder counts from the moment before it sent a renewal, the others from the moment when they saw it. So the
holder knows first that its time is over. The times in the object are for people.

It is stricter than client-go. A Lease that was edited is free only when the time of its holder is over. The same holds
for a Lease that was deleted after this process saw it, and with `strict` for each Lease that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from typing_extensions import override

from kplane.provider.client.client import Client, Object
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import Conflict, Invalid, LeaseLost, NotFound

__all__ = ["Lease", "LeaseTimings", "clock"]

# Elsewhere than on Linux, for example on macOS, the monotonic clock runs while the machine sleeps.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_JITTER: Final = 1.2
_NEVER: Final = float("-inf")
_RELEASED_SECONDS: Final = 1
"""What client-go writes as duration of a Lease that it releases."""


def clock() -> float:
    """Return seconds of a clock that cannot be set, and that runs while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimings:
    """Sets how long a Lease lasts. With the defaults, another process takes over 13 s after a holder's sudden death.

    The holder renews every `retry_seconds`, ends its work if renewals failed for `renew_deadline_seconds`, and has the
    rest of `duration_seconds` for that. Raises ValueError if the values do not fit together.
    """

    duration_seconds: int = 10
    renew_deadline_seconds: float = 7.0
    retry_seconds: float = 1.5

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds * _JITTER < self.renew_deadline_seconds < self.duration_seconds:
            raise ValueError(
                f"a Lease of {self.duration_seconds:g} s that is renewed every {self.retry_seconds:g} s for at most"
                f" {self.renew_deadline_seconds:g} s: the retries have to be shorter than the deadline (by a fifth),"
                " and the deadline shorter than the Lease"
            )


@dataclass(frozen=True, slots=True)
class _Record:
    """The spec of a Lease."""

    holder: str = ""
    duration_seconds: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0

    @classmethod
    def of(cls, lease: Object) -> Self:
        spec: Mapping[str, Any] = lease.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            duration_seconds=spec.get("leaseDurationSeconds") or 0,
            acquired=spec.get("acquireTime") or "",
            renewed=spec.get("renewTime") or "",
            transitions=spec.get("leaseTransitions") or 0,
        )

    @property
    def free(self) -> bool:
        """Whether it never had a holder, or the last one released it; not if its holder was edited away."""
        if self.holder:
            return False
        return self == _Record() or (self.duration_seconds == _RELEASED_SECONDS and self.acquired == self.renewed)

    def to_spec(self) -> Object:
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration_seconds,
            "acquireTime": self.acquired,
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        }


class Lease:
    """One Lease as one process sees it. It is passive; `Election` holds one for a long time.

    `identity` must belong to this process alone, also after a restart. `client` needs get, create and update on Leases
    of this name, and a call deadline well below `renew_deadline_seconds`. Tests replace `now`.

    A Lease that does not exist counts as one that was never held, unless this process has seen it before. With `strict`
    it counts as deleted: a user may have deleted it during the work of its holder.

    `patience` gets another holder and its duration as the object names them. It returns for how many seconds the Lease
    must not change until this process may take it. The default is the longer one of both durations.

    Every method raises ProviderError if the API server refuses or does not answer; it can be called again then.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        timings: LeaseTimings | None = None,
        labels: Mapping[str, str] | None = None,
        strict: bool = False,
        patience: Callable[[str, int], float] | None = None,
        now: Callable[[], float] = clock,
        wall_clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.identity: Final = identity
        self.timings: Final = timings or LeaseTimings()
        self._client = client
        self._metadata: Final[Object] = {"namespace": namespace, "name": name, "labels": dict(labels or {})}
        self._strict: Final = strict
        self._patience_for: Final = patience or self._longer_duration
        self._now = now
        self._wall_clock = wall_clock
        self._seen: _Record | None = None
        self._seen_since = _NEVER
        self._seen_version = 0
        self._renewed_by: str | None = None
        self._existed = False
        """Whether there ever was one to be seen."""
        self._transitions = 0
        self._object: Object | None = None
        """As we wrote it last, while it is ours."""
        self._acquired = ""
        """Marks what we wrote since we began to ask for it, also if no answer told that it was written."""
        self._former = ""
        """Marks what we wrote when we held it last, until another holder is seen."""
        self._created = False
        self._renewed_at = _NEVER
        self._usable_from = _NEVER
        self._expires_at = _NEVER

    @override
    def __str__(self) -> str:
        return f"Lease {self._metadata['namespace']}/{self._metadata['name']}"

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return str(self._metadata["namespace"])

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self._metadata["name"])

    @property
    def held(self) -> bool:
        """Whether this process holds it now, by the clock, and exclusively."""
        return self._usable_from <= self._now() < self._expires_at

    @property
    def seconds_left(self) -> float:
        """Remaining seconds without a renewal; 0 if this process does not hold it."""
        return self._expires_at - self._now() if self.held else 0.0

    @property
    def holder(self) -> str | None:
        """Its holder when it was last read; None if there was none."""
        return (self._seen.holder or None) if self._seen is not None else None

    @property
    def obstacle(self) -> str:
        """Why this process does not hold it, for logs."""
        seen = self._seen
        if self._now() < self._expires_at:
            return (
                f"{self} did not exist; this process has created it, and gives a former holder"
                f" {self.timings.duration_seconds} s to end"
            )
        if seen is None or not seen.holder:
            return f"{self} has no holder, and is taken when that has lasted for {self._patience():g} s"
        since = f" since {seen.acquired}" if seen.acquired else ""
        if seen.holder == self.identity:
            return f"{self} is held{since} by another process of this identity, {self.identity}, which may have ended"
        return f"{self} is held by {seen.holder}{since}"

    @property
    def held_since(self) -> str:
        """Time at which its holder acquired it, as the object has it; for people, and empty if unknown."""
        return self._seen.acquired if self._seen is not None else ""

    @property
    def renewed_by(self) -> str | None:
        """Holder that has renewed it between two reads, and so is alive; None if no renewal was seen."""
        return self._renewed_by if self.holder is not None and self._renewed_by == self.holder else None

    @property
    def transitions(self) -> int:
        """Number of times that it changed hands, as last read; it grows unless the Lease is deleted."""
        return self._transitions

    @property
    def renewed_at(self) -> float:
        """Time of `now` from which it lasts: before the last successful renewal was sent."""
        return self._renewed_at

    @property
    def expires_at(self) -> float:
        """Time of `now` at which others may take it; long ago if this process does not hold it."""
        return self._expires_at

    @property
    def free_at(self) -> float:
        """Time of `now` from which it may be taken, as last read; for one that is held, from which it may be used."""
        return self._usable_from if self._now() < self._expires_at else self._seen_since + self._patience()

    def observe(self, found: Object, *, deleted: bool = False) -> None:
        """Take note of an event of a watch: the time of another holder starts anew.

        An event from before the last read changes nothing.
        """
        version = _version(found)
        if version >= self._seen_version:
            self._see(None if deleted else _Record.of(found), version=version)

    async def try_acquire(self, *, absent_since: float | None = None) -> bool:
        """Take it if it is free, or renew it; return whether it is held.

        A Lease that does not exist is created. If it was deleted, it is held only after it has lasted once, because its
        holder may still work. That time counts from `absent_since`, a time of `now`, if a watch has seen no such Lease
        since then.
        """
        if self._now() < self._expires_at:
            await self.renew()
            return self.held
        known = await self._read()
        if self._now() < self.free_at:
            return False
        try:
            await self._take(known, absent_since=absent_since)
        except Conflict:
            return False  # somebody was quicker
        except NotFound:
            if known is None:
                raise  # its namespace is missing
            return False
        return self.held

    async def renew(self) -> None:
        """Extend it; create it again if it was deleted.

        Raises LeaseLost if it names another holder or none, or if its time is over.
        """
        if self._now() >= self._expires_at:
            self._drop()
            raise LeaseLost(f"{self} ran out")
        try:
            await self._write(self._mine(), over=self._object)
        except (Conflict, NotFound):
            known = await self._read()
            if known is not None and not self._is_mine(_Record.of(known)):
                self._drop()
                raise LeaseLost(f"{self} is held by {self.holder or 'nobody'} now") from None
            await self._write(self._mine(), over=known)

    async def release(self) -> None:
        """Release it, so that the next holder need not wait; does nothing if it is not held.

        Call it when all work and all renewals have ended.
        """
        known, former = self._object, self._seen or _Record()
        if not self.held:
            # One that was made and is not to be used yet: the next one has to wait as well.
            self._drop()
            return
        now = self._timestamp()
        released = replace(former, holder="", duration_seconds=_RELEASED_SECONDS, acquired=now, renewed=now)
        try:
            await self._put(released, over=known)
        except (Conflict, NotFound):
            known = await self._read()
            if known is not None and self._is_mine(_Record.of(known)):
                await self._put(released, over=known)
        finally:
            self._drop()

    async def _read(self) -> Object | None:
        try:
            found = await self._client.get(LEASES, self.name, namespace=self.namespace)
        except NotFound:
            found = None
        if found is not None:
            self._see(_Record.of(found), version=_version(found))
        else:
            self._see(None, version=self._seen_version)
        return found

    def _see(self, record: _Record | None, *, version: int) -> None:
        self._seen_version = version
        if record != self._seen or self._seen_since == _NEVER:
            if record is not None and self._seen is not None and record == replace(self._seen, renewed=record.renewed):
                self._renewed_by = record.holder
            self._seen, self._seen_since = record, self._now()
            if record is not None:
                self._existed, self._transitions = True, record.transitions
                if record.holder and not self._is_mine(record) and not self._was_mine(record):
                    self._former = ""

    def _patience(self) -> float:
        """Return how long the last state must stay until the Lease may be taken."""
        seen = self._seen
        if seen is None:
            # A holder makes it again before that.
            return 2 * self.timings.retry_seconds if self._existed else 0.0
        if seen.free or self._is_mine(seen) or self._was_mine(seen):
            return 0.0
        return self._patience_for(seen.holder, seen.duration_seconds)

    def _longer_duration(self, _: str, duration_seconds: int) -> float:
        # The holder may have other settings, and an edit of the object must not make the time shorter.
        return max(duration_seconds, self.timings.duration_seconds)

    async def _take(self, known: Object | None, *, absent_since: float | None) -> None:
        if not self._acquired:
            self._acquired = self._timestamp()
        record = self._mine()
        if known is None or not self._is_mine(_Record.of(known)):
            self._created = known is None and (self._strict or self._existed)
            record = replace(record, transitions=self._transitions + self._existed)
        await self._write(record, over=known)
        # A holder of a deleted Lease has stopped once that Lease would have expired.
        vacant = self._now() if absent_since is None else absent_since
        self._usable_from = vacant + self.timings.duration_seconds if self._created else self._renewed_at

    def _mine(self) -> _Record:
        return _Record(
            holder=self.identity,
            duration_seconds=self.timings.duration_seconds,
            acquired=self._acquired,
            renewed=self._timestamp(),
            transitions=self._transitions,
        )

    def _is_mine(self, record: _Record) -> bool:
        # The identity alone is no proof: an edit may have written it while another process works.
        return bool(self._acquired) and (record.holder, record.acquired) == (self.identity, self._acquired)

    def _was_mine(self, record: _Record) -> bool:
        # This process knows that its work under it has ended, and no other process has taken it since.
        return bool(self._former) and (record.holder, record.acquired) == (self.identity, self._former)

    async def _write(self, record: _Record, *, over: Object | None) -> None:
        sent = self._now()
        self._object = await self._put(record, over=over)
        self._see(_Record.of(self._object), version=_version(self._object))
        self._renewed_at = sent
        self._expires_at = sent + record.duration_seconds

    async def _put(self, record: _Record, *, over: Object | None) -> Object:
        """Write over exactly the known state. Raises Conflict, or NotFound, if something else is there."""
        # The uid has an update fail if the object is gone, which would make a new one otherwise.
        body = over if over is not None else {"metadata": self._metadata}
        try:
            return await self._client.replace(LEASES, {**body, "spec": record.to_spec()})
        except Invalid as error:
            if over is not None:
                raise
            # Without a resourceVersion an update creates, and no more than that.
            raise Conflict(409, "Conflict", f"{self} exists: {error}") from error

    def _drop(self) -> None:
        self._former = self._acquired or self._former
        self._object, self._acquired, self._created = None, "", False
        self._renewed_at = self._usable_from = self._expires_at = _NEVER

    def _timestamp(self) -> str:
        return self._wall_clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _version(found: Object) -> int:
    """Return a resourceVersion as a number: those of one server grow. 0 if it is no number."""
    version = (found.get("metadata") or {}).get("resourceVersion")
    return int(version) if isinstance(version, str) and version.isdecimal() else 0
