"""A Lease of the Kubernetes API, which a single process holds at a time.

The protocol is client-go's tools/leaderelection, so a Lease can be shared with processes that use client-go. Every
process trusts only its own clock. The holder measures the duration from before it sent a renewal, other processes from
when they observed the renewal. So the holder is the first to consider its Lease expired. The timestamps in the object
are for people.

This module is stricter than client-go. An edited Lease becomes free only after the duration of its holder. The same
rule holds for a Lease that was deleted after this process observed it, and with `strict` for each missing Lease.
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

# CLOCK_MONOTONIC of Linux stops while the machine sleeps, CLOCK_BOOTTIME does not. macOS has only CLOCK_MONOTONIC,
# which does not stop.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_JITTER: Final = 1.2
_NEVER: Final = float("-inf")
_RELEASED_SECONDS: Final = 1
"""Duration that client-go writes into a Lease on release."""


def clock() -> float:
    """Return the seconds of a monotonic clock that runs while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimings:
    """Timings of a Lease. With the defaults, another process takes over 13 s after the sudden death of a holder.

    The holder renews every `retry_seconds`. If renewals fail for `renew_deadline_seconds`, the holder ends its work
    within the rest of `duration_seconds`. Raises ValueError if the values do not fit together.
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
        """Whether the Lease never had a holder, or was released; false if an edit removed the holder."""
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
    """A Lease from the view of one process, without a task of its own; `Election` keeps a Lease renewed.

    `identity` must belong to this process alone, also after a restart. `client` needs get, create and update on Leases
    of this name, and a call deadline well below `renew_deadline_seconds`. Tests replace `now`.

    A missing Lease counts as never held, unless this process observed the Lease before. With `strict` a missing Lease
    counts as deleted: a user may have deleted the Lease during the work of its holder.

    `patience` takes the holder and the duration in the object, if another process is the holder. The function returns
    the seconds for which the Lease must stay unchanged before this process may acquire it. The default is the longer
    duration of the object and of this process.

    Every method raises ProviderError if the API server refuses or does not respond; the caller may then retry.
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
        self._observed: _Record | None = None
        self._observed_at = _NEVER
        self._observed_version = 0
        self._renewed_by: str | None = None
        self._existed = False
        """Whether this process has ever observed the Lease."""
        self._transitions = 0
        self._object: Object | None = None
        """The object of the last write, while this process holds the Lease."""
        self._acquired = ""
        """acquireTime of this acquisition, which identifies writes of this process even if their response was lost."""
        self._former = ""
        """acquireTime of the previous acquisition, until this process observes another holder."""
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
        """Whether this process holds the Lease exclusively now, by its own clock."""
        return self._usable_from <= self._now() < self._expires_at

    @property
    def seconds_left(self) -> float:
        """Remaining seconds without a renewal; 0 if this process does not hold the Lease."""
        return self._expires_at - self._now() if self.held else 0.0

    @property
    def holder(self) -> str | None:
        """Holder in the last observed state of the Lease; None without a holder."""
        return (self._observed.holder or None) if self._observed is not None else None

    @property
    def obstacle(self) -> str:
        """Reason that this process does not hold the Lease, for logs."""
        observed = self._observed
        if self._now() < self._expires_at:
            return (
                f"{self} did not exist; this process has created it, and gives a former holder"
                f" {self.timings.duration_seconds} s to end"
            )
        if observed is None or not observed.holder:
            return f"{self} has no holder, and is taken when that has lasted for {self._patience():g} s"
        since = f" since {observed.acquired}" if observed.acquired else ""
        if observed.holder == self.identity:
            return f"{self} is held{since} by another process of this identity, {self.identity}, which may have ended"
        return f"{self} is held by {observed.holder}{since}"

    @property
    def held_since(self) -> str:
        """acquireTime in the last observed state of the Lease, for people; empty if unknown."""
        return self._observed.acquired if self._observed is not None else ""

    @property
    def renewed_by(self) -> str | None:
        """Holder whose renewal this process has observed, so that it is alive; None without an observed renewal."""
        return self._renewed_by if self.holder is not None and self._renewed_by == self.holder else None

    @property
    def transitions(self) -> int:
        """leaseTransitions of the object, the number of changes of the holder; grows unless the Lease is deleted."""
        return self._transitions

    @property
    def renewed_at(self) -> float:
        """Time, by `now`, just before the last successful renewal was sent; minus infinity without one."""
        return self._renewed_at

    @property
    def expires_at(self) -> float:
        """Time, by `now`, at which the last renewal of this process expires, and other processes may acquire the Lease.

        Minus infinity before the first acquisition, and after a release or a loss.
        """
        return self._expires_at

    @property
    def free_at(self) -> float:
        """Time, by `now`, from which this process may acquire the Lease, or use a Lease that it holds."""
        return self._usable_from if self._now() < self._expires_at else self._observed_at + self._patience()

    def observe(self, lease: Object, *, deleted: bool = False) -> None:
        """Observe an event of a watch. A change of the Lease restarts the wait for its holder's duration.

        An event from before the last read has no effect.
        """
        version = _version(lease)
        if version >= self._observed_version:
            self._observe_record(None if deleted else _Record.of(lease), version=version)

    async def try_acquire(self, *, absent_since: float | None = None) -> bool:
        """Acquire the Lease if it is free, or renew it; return whether this process holds the Lease.

        A missing Lease is created. A Lease that replaces a deleted Lease is held only after its duration, because the
        former holder may still work. The duration begins at `absent_since`, a time of `now`, if a watch has observed
        no such Lease since then.
        """
        if self._now() < self._expires_at:
            await self.renew()
            return self.held
        current = await self._read()
        if self._now() < self.free_at:
            return False
        try:
            await self._take(current, absent_since=absent_since)
        except Conflict:
            return False  # another process was faster
        except NotFound:
            if current is None:
                raise  # its namespace is missing
            return False
        return self.held

    async def renew(self) -> None:
        """Renew the Lease; create it again if it was deleted.

        Raises LeaseLost if the Lease has another holder or none, or has expired.
        """
        if self._now() >= self._expires_at:
            self._drop()
            raise LeaseLost(f"{self} ran out")
        try:
            await self._write(self._own_record(), over=self._object)
        except (Conflict, NotFound):
            current = await self._read()
            if current is not None and not self._is_mine(_Record.of(current)):
                self._drop()
                raise LeaseLost(f"{self} is held by {self.holder or 'nobody'} now") from None
            await self._write(self._own_record(), over=current)

    async def release(self) -> None:
        """Release the Lease, so that the next holder need not wait. Sends no request if the Lease is not held.

        Call `release` after the end of all work and all renewals.
        """
        current, former = self._object, self._observed or _Record()
        if not self.held:
            # If this process has created the Lease and may not use it yet, the next holder has to wait as well.
            self._drop()
            return
        now = self._timestamp()
        released = replace(former, holder="", duration_seconds=_RELEASED_SECONDS, acquired=now, renewed=now)
        try:
            await self._put(released, over=current)
        except (Conflict, NotFound):
            current = await self._read()
            if current is not None and self._is_mine(_Record.of(current)):
                await self._put(released, over=current)
        finally:
            self._drop()

    async def _read(self) -> Object | None:
        try:
            lease: Object | None = await self._client.get(LEASES, self.name, namespace=self.namespace)
        except NotFound:
            lease = None
        if lease is not None:
            self._observe_record(_Record.of(lease), version=_version(lease))
        else:
            self._observe_record(None, version=self._observed_version)
        return lease

    def _observe_record(self, record: _Record | None, *, version: int) -> None:
        self._observed_version = version
        if record != self._observed or self._observed_at == _NEVER:
            if (
                record is not None
                and self._observed is not None
                and record == replace(self._observed, renewed=record.renewed)
            ):
                self._renewed_by = record.holder
            self._observed, self._observed_at = record, self._now()
            if record is not None:
                self._existed, self._transitions = True, record.transitions
                if record.holder and not self._is_mine(record) and not self._was_mine(record):
                    self._former = ""

    def _patience(self) -> float:
        """Return the seconds for which the Lease must stay unchanged before this process may acquire it."""
        observed = self._observed
        if observed is None:
            # A holder creates a deleted Lease again within this time.
            return 2 * self.timings.retry_seconds if self._existed else 0.0
        if observed.free or self._is_mine(observed) or self._was_mine(observed):
            return 0.0
        return self._patience_for(observed.holder, observed.duration_seconds)

    def _longer_duration(self, _: str, duration_seconds: int) -> float:
        # The holder may have other settings, and an edit of the object must not shorten the wait.
        return max(duration_seconds, self.timings.duration_seconds)

    async def _take(self, current: Object | None, *, absent_since: float | None) -> None:
        if not self._acquired:
            self._acquired = self._timestamp()
        record = self._own_record()
        if current is None or not self._is_mine(_Record.of(current)):
            self._created = current is None and (self._strict or self._existed)
            record = replace(record, transitions=self._transitions + self._existed)
        await self._write(record, over=current)
        # The holder of a deleted Lease has stopped when that Lease would have expired.
        vacant = self._now() if absent_since is None else absent_since
        self._usable_from = vacant + self.timings.duration_seconds if self._created else self._renewed_at

    def _own_record(self) -> _Record:
        return _Record(
            holder=self.identity,
            duration_seconds=self.timings.duration_seconds,
            acquired=self._acquired,
            renewed=self._timestamp(),
            transitions=self._transitions,
        )

    def _is_mine(self, record: _Record) -> bool:
        # The identity alone is no proof: an edit may have set it while another process works.
        return bool(self._acquired) and (record.holder, record.acquired) == (self.identity, self._acquired)

    def _was_mine(self, record: _Record) -> bool:
        # The work of this process under the Lease has ended, and no other process has acquired the Lease since.
        return bool(self._former) and (record.holder, record.acquired) == (self.identity, self._former)

    async def _write(self, record: _Record, *, over: Object | None) -> None:
        sent = self._now()
        self._object = await self._put(record, over=over)
        self._observe_record(_Record.of(self._object), version=_version(self._object))
        self._renewed_at = sent
        self._expires_at = sent + record.duration_seconds

    async def _put(self, record: _Record, *, over: Object | None) -> Object:
        """Replace the state `over` by a record, or create the object if `over` is None.

        Raises Conflict or NotFound if the object has another state.
        """
        # The uid makes an update of a deleted object fail; without the uid the update would create a new object.
        body = over if over is not None else {"metadata": self._metadata}
        try:
            return await self._client.replace(LEASES, {**body, "spec": record.to_spec()})
        except Invalid as error:
            if over is not None:
                raise
            # An update without a resourceVersion can only create the object.
            raise Conflict(409, "Conflict", f"{self} exists: {error}") from error

    def _drop(self) -> None:
        self._former = self._acquired or self._former
        self._object, self._acquired, self._created = None, "", False
        self._renewed_at = self._usable_from = self._expires_at = _NEVER

    def _timestamp(self) -> str:
        return self._wall_clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _version(lease: Object) -> int:
    """Return the resourceVersion as a number; 0 if it is no number. The numbers of a server grow."""
    version = (lease.get("metadata") or {}).get("resourceVersion")
    return int(version) if isinstance(version, str) and version.isdecimal() else 0
