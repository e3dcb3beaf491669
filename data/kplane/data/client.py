"""A client of etcd: keys and values; users and roles by `access`; members by `members`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from kplane.data import prefix as prefixes
from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.access import Access
from kplane.data.connection import Connection
from kplane.data.credentials import Credentials, HeldCredentials
from kplane.data.errors import Compacted, ConditionNotMet, DataError, PermissionDenied, TooLarge
from kplane.data.members import Members
from kplane.data.walk import Walk

__all__ = [
    "LARGEST_WRITTEN",
    "MAX_OPERATIONS",
    "MAX_REQUEST_BYTES",
    "Absent",
    "Applied",
    "Client",
    "Condition",
    "Delete",
    "DeleteRange",
    "Empty",
    "Equals",
    "KeyValue",
    "Operation",
    "Page",
    "Put",
    "Unchanged",
    "Weight",
]

MAX_OPERATIONS: Final = 120
"""Maximum number of operations per transaction; etcd accepts 128."""

LARGEST_WRITTEN: Final = 2 << 20
"""Size of the largest request that an API server sends to etcd, in bytes: its client refuses larger requests."""

MAX_REQUEST_BYTES: Final = LARGEST_WRITTEN + (64 << 10)
"""Request size that kplane's etcds accept, in bytes: an object of an API server plus the conditions of a copy."""

_PAGE: Final = 500
_PAGE_BYTES: Final = 4 << 20
"""Target size of a page in bytes: half of the answer limit that kplane's clients set, if they set a limit."""
_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key, its value, and the revision of the last write."""

    key: bytes
    value: bytes
    revision: int
    lease: int = 0
    """Id of the etcd lease with which the key expires; 0 if the key has no lease."""


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive keys of a range at one revision."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """Number and size of some keys."""

    keys: int
    size: int
    """Size of the answer with these keys and values, in bytes."""
    largest: int = 0
    """Size of the largest key and its value, in bytes."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: bytes
    value: bytes
    lease: int = 0
    """Id of the etcd lease with which the key expires; 0 for no lease."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, if it exists."""

    key: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete the keys from `key` (inclusive) to `range_end` (exclusive)."""

    key: bytes
    range_end: bytes


Operation = Put | Delete | DeleteRange


@dataclass(frozen=True, slots=True)
class Equals:
    """A key exists and has this value."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A key exists, and this revision wrote it last. The condition takes fewer bytes of a request than `Equals`."""

    key: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Absent:
    """A key does not exist."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Empty:
    """A prefix has no key."""

    prefix: str


Condition = Equals | Unchanged | Absent | Empty


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of a transaction."""

    revision: int
    deleted: int
    """Number of keys that the transaction deleted."""


class Client:
    """Client of an etcd on a persistent connection, as the user in the client certificate. An async context manager.

    Each method raises DataError. Each call has the deadline `timeout_seconds`. A client belongs to the event loop of
    its first call.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        credentials: Credentials | HeldCredentials,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        receive_at_most: int = -1,
    ) -> None:
        """Take the URL of an etcd, without a request before the first call. Raises DataError if the URL is invalid.

        An answer of more than `receive_at_most` bytes raises TooLarge; -1 means no limit.
        """
        self.connection: Final = Connection(endpoint, credentials=credentials, receive_at_most=receive_at_most)
        self.access: Final = Access(self.connection, timeout_seconds=timeout_seconds)
        self.members: Final = Members(self.connection, timeout_seconds=timeout_seconds)
        self._timeout_seconds = timeout_seconds

    @property
    def endpoint(self) -> str:
        """The URL of the etcd."""
        return self.connection.endpoint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def problem(self) -> str | None:
        """Return why etcd is unhealthy; None if etcd has a leader, answers, and has no alarm."""
        try:
            # The read goes through the leader. Any key will do, even a key that the user may not read.
            await self._call(rpc.RANGE, pb.RangeRequest(key=b"health", count_only=True))
        except PermissionDenied:
            pass
        except DataError as error:
            return str(error)
        try:
            alarms = (await self._call(rpc.ALARM, pb.AlarmRequest(action=pb.AlarmRequest.GET))).alarms
        except DataError as error:
            return str(error)
        names = sorted({pb.AlarmType.Name(alarm.alarm) for alarm in alarms})
        return f"etcd at {self.endpoint} raised {', '.join(names)}" if names else None

    async def version(self) -> str:
        """Return the version of the member that answers, such as 3.6.16."""
        return (await self._call(rpc.STATUS, pb.StatusRequest())).version

    async def size_in_use(self) -> int:
        """Return the size in use of the database of the member that answers, in bytes, history included."""
        return (await self._call(rpc.STATUS, pb.StatusRequest())).dbSizeInUse

    async def revision(self, *, key: bytes = b"health") -> int:
        """Return the current revision of the store, from the header of an answer about `key`.

        A user of etcd with permission for a single prefix has to pass a key of that prefix. Raises PermissionDenied if
        the user may not read `key`.
        """
        return (await self._call(rpc.RANGE, pb.RangeRequest(key=key, count_only=True))).header.revision

    async def weigh(self, walk: Walk) -> Weight:
        """Measure the next keys of a walk with a serializable read, which the member answers from its own state."""
        answer = await self._range(walk, serializable=True)
        largest = max((len(pair.key) + len(pair.value) for pair in answer.kvs), default=0)
        return Weight(len(answer.kvs), answer.ByteSize(), largest)

    async def get(self, key: bytes) -> KeyValue | None:
        """Return a key with its value; None if the key does not exist."""
        answer = await self._call(rpc.RANGE, pb.RangeRequest(key=key))
        return _item(answer.kvs[0]) if answer.kvs else None

    async def pages(self, prefix: str, *, size: int = _PAGE, revision: int = 0) -> AsyncIterator[Page]:
        """Read the keys of a prefix in pages: at least one page, and all pages at the same revision.

        `size` is the maximum number of keys in a page. `revision` is the revision to read; 0 means the current one.
        A page that exceeds the limit of the connection is requested again with fewer keys; later pages grow again.
        Raises InvalidPrefix, and Compacted if etcd compacts the revision before the last page is read.
        """
        walk = Walk(prefix, first=size, most=size, size=_PAGE_BYTES)
        while not walk.ended:
            try:
                answer = await self._range(walk, revision=revision)
            except TooLarge:
                if not walk.halve():
                    raise
                continue
            revision = revision or answer.header.revision
            yield Page(revision, tuple(_item(pair) for pair in answer.kvs))

    async def count(self, prefix: str) -> int:
        """Count the keys of a prefix. Raises InvalidPrefix."""
        start = prefixes.checked(prefix)
        request = pb.RangeRequest(key=start, range_end=prefixes.range_end(start), count_only=True)
        return (await self._call(rpc.RANGE, request)).count

    async def put(self, key: bytes, value: bytes) -> int:
        """Write a key, and return the revision of the write."""
        return (await self._call(rpc.PUT, pb.PutRequest(key=key, value=value))).header.revision

    async def key_pages(self, prefix: str, *, size: int) -> AsyncIterator[tuple[bytes, ...]]:
        """Read the keys of a prefix without their values, in pages of at most `size` keys.

        Each page has the revision of its read, so that the caller may delete the keys of earlier pages meanwhile.
        Raises InvalidPrefix.
        """
        walk = Walk(prefix, first=size, most=size, size=_PAGE_BYTES)
        while not walk.ended:
            answer = await self._range(walk, keys_only=True)
            if answer.kvs:
                yield tuple(pair.key for pair in answer.kvs)

    async def apply(self, operations: Sequence[Operation], *, only_if: Sequence[Condition] = ()) -> Applied:
        """Apply all operations in one transaction, if all conditions hold.

        A transaction has at most `MAX_OPERATIONS` operations, and should have about 1 MiB of keys and values: etcd's
        default limit for a request is 1.5 MiB. Raises ConditionNotMet, and TooLarge.
        """
        request = pb.TxnRequest(compare=map(_compare, only_if), success=_operations(operations))
        try:
            answer = await self._call(rpc.TXN, request)
        except TooLarge:
            puts = [item for item in operations if isinstance(item, Put)]
            if not puts:
                raise
            largest = max(puts, key=lambda put: len(put.value))
            raise TooLarge(
                f"failed to write {largest.key.decode(errors='replace')} to etcd at {self.endpoint}: its value has"
                f" {len(largest.value)} bytes, and etcd takes no request of that size; set its --max-request-bytes to"
                f" {MAX_REQUEST_BYTES}, or delete the object at the source"
            ) from None
        if not answer.succeeded:
            raise ConditionNotMet(f"etcd at {self.endpoint} changed nothing: the conditions do not hold")
        return Applied(answer.header.revision, sum(item.response_delete_range.deleted for item in answer.responses))

    async def accepts(self, key: bytes, *, size: int) -> bool:
        """Return whether etcd accepts a request of `size` bytes, without a change. `key` must not exist.

        etcd does not limit a transaction without operations. So this one would delete the key if it had a long value.
        """
        try:
            await self.apply([Delete(key)], only_if=[Equals(key, bytes(size))])
        except TooLarge:
            return False
        except ConditionNotMet:
            pass
        return True

    async def delete_prefix(self, prefix: str) -> int:
        """Delete all keys of a prefix in a single transaction, and return their number. Raises InvalidPrefix."""
        start = prefixes.checked(prefix)
        request = pb.DeleteRangeRequest(key=start, range_end=prefixes.range_end(start))
        return (await self._call(rpc.DELETE_RANGE, request)).deleted

    async def compact(self, revision: int) -> None:
        """Compact the history of all keys before a revision, which stays readable.

        The call has no effect if etcd has already compacted that revision. Reads and watches of an earlier revision
        fail with Compacted once the call has returned.
        """
        with contextlib.suppress(Compacted):
            await self._call(rpc.COMPACT, pb.CompactionRequest(revision=revision))

    async def grant_lease(self, seconds: int) -> int:
        """Create a lease that expires after this number of seconds, and return its id."""
        return (await self._call(rpc.LEASE_GRANT, pb.LeaseGrantRequest(TTL=seconds))).ID

    async def lease_seconds(self, lease: int) -> int:
        """Return the remaining seconds of a lease; 0 or less if the lease has expired."""
        return (await self._call(rpc.LEASE_TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease))).TTL

    async def _range(
        self, walk: Walk, *, revision: int = 0, serializable: bool = False, keys_only: bool = False
    ) -> pb.RangeResponse:
        request = pb.RangeRequest(
            key=walk.start,
            range_end=walk.end,
            limit=walk.limit,
            revision=revision,
            serializable=serializable,
            keys_only=keys_only,
        )
        answer = await self._call(rpc.RANGE, request)
        walk.advance(answer)
        return answer

    async def _call(self, method: rpc.Method[rpc.RequestT, rpc.ResponseT], request: rpc.RequestT) -> rpc.ResponseT:
        return await self.connection.call(method, request, timeout_seconds=self._timeout_seconds)


def _item(pair: pb.KeyValue) -> KeyValue:
    return KeyValue(pair.key, pair.value, pair.mod_revision, pair.lease)


def _operations(operations: Sequence[Operation]) -> Iterable[pb.RequestOp]:
    for operation in operations:
        match operation:
            case Put():
                yield pb.RequestOp(
                    request_put=pb.PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
                )
            case Delete():
                yield pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=operation.key))
            case DeleteRange():
                request = pb.DeleteRangeRequest(key=operation.key, range_end=operation.range_end)
                yield pb.RequestOp(request_delete_range=request)


def _compare(condition: Condition) -> pb.Compare:
    match condition:
        case Equals():
            return pb.Compare(target=pb.Compare.VALUE, key=condition.key, value=condition.value)
        case Unchanged():
            return pb.Compare(target=pb.Compare.MOD, key=condition.key, mod_revision=condition.revision)
        case Absent():
            return pb.Compare(target=pb.Compare.CREATE, key=condition.key, create_revision=0)
        case Empty():
            # etcd compares every key of the range, and an existing key never has create revision 0.
            start = prefixes.checked(condition.prefix)
            return pb.Compare(
                target=pb.Compare.CREATE, key=start, range_end=prefixes.range_end(start), create_revision=0
            )
