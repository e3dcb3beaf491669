"""A client of etcd: keys and values, by `access` its users and roles, and by `members` its members."""

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
"""Operations in one transaction; etcd takes 128."""

LARGEST_WRITTEN: Final = 2 << 20
"""Bytes of the largest request that an API server sends to etcd: its client refuses larger ones."""

MAX_REQUEST_BYTES: Final = LARGEST_WRITTEN + (64 << 10)
"""Bytes of a request that the etcds of kplane take: an object of an API server, and the conditions of a copy."""

_PAGE: Final = 500
_PAGE_BYTES: Final = 4 << 20
"""Half of what the clients take that limit their answers."""
_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key, its value, and the revision that wrote it."""

    key: bytes
    value: bytes
    revision: int
    lease: int = 0
    """Of etcd, with which the key ends; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys of a range, in order, as they were at a revision."""

    revision: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """What some keys weigh."""

    keys: int
    size: int
    """Of keys and values, in bytes."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: bytes
    value: bytes
    lease: int = 0
    """Of etcd, with which the key ends; 0 for none."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, if it exists."""

    key: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete the keys from `key` up to and without `range_end`."""

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
    """A key exists, and this revision wrote it last. It takes fewer bytes of a request than `Equals`."""

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
    """What a transaction did."""

    revision: int
    deleted: int
    """Keys that were there and are not there any more."""


class Client:
    """etcd on one kept connection, as the user whom the client certificate names. An async context manager.

    Each method raises DataError, and has the deadline `timeout_seconds` for each of its calls. A client belongs to the
    event loop of its first call.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        credentials: Credentials | HeldCredentials,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        receive_at_most: int = -1,
    ) -> None:
        """Take the URL of an etcd. Nothing is sent before the first call. Raises DataError if it is no such URL.

        An answer of more bytes than `receive_at_most` is the error TooLarge; -1 stands for no limit.
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
        """Say why etcd is not healthy; None if it has a leader, answers and raised no alarm."""
        try:
            # Reads through the leader. Any key will do, one that the user may not read too.
            await self._call(rpc.RANGE, pb.RangeRequest(key=b"health", count_only=True))
        except PermissionDenied:
            pass
        except DataError as error:
            return str(error)
        try:
            alarms = (await self._call(rpc.ALARM, pb.AlarmRequest(action=pb.AlarmRequest.GET))).alarms
        except DataError as error:
            return str(error)
        names = sorted({pb.AlarmType.Name(each.alarm) for each in alarms})
        return f"etcd at {self.endpoint} raised {', '.join(names)}" if names else None

    async def version(self) -> str:
        """Return the version of the member that answers, such as 3.6.16."""
        return (await self._call(rpc.STATUS, pb.StatusRequest())).version

    async def size_in_use(self) -> int:
        """Return the bytes that the database of the member that answers has in use, history included."""
        return (await self._call(rpc.STATUS, pb.StatusRequest())).dbSizeInUse

    async def revision(self, *, key: bytes = b"health") -> int:
        """Return the revision of the last change of any key, from an answer about `key`.

        A user of etcd that may read one prefix only has to name a key of it. Raises DataError: PermissionDenied
        if the user may not read `key`.
        """
        return (await self._call(rpc.RANGE, pb.RangeRequest(key=key, count_only=True))).header.revision

    async def weigh(self, walk: Walk) -> Weight:
        """Weigh the next keys of a walk, as the member that answers has them."""
        answer = await self._range(walk, serializable=True)
        return Weight(len(answer.kvs), answer.ByteSize())

    async def get(self, key: bytes) -> KeyValue | None:
        """Return a key; None if it does not exist."""
        answer = await self._call(rpc.RANGE, pb.RangeRequest(key=key))
        return _item(answer.kvs[0]) if answer.kvs else None

    async def pages(self, prefix: str, *, size: int = _PAGE, revision: int = 0) -> AsyncIterator[Page]:
        """Read the keys of a prefix at one revision, in pages: at least one, and all of the same revision.

        0 stands for the present revision.

        A page that is larger than the connection takes is asked for again with fewer keys; later pages grow again.
        Raises InvalidPrefix, and Compacted if etcd compacted the revision before the last page was read.
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
            yield Page(revision, tuple(_item(each) for each in answer.kvs))

    async def count(self, prefix: str) -> int:
        """Count the keys of a prefix. Raises InvalidPrefix."""
        start = prefixes.checked(prefix)
        request = pb.RangeRequest(key=start, range_end=prefixes.range_end(start), count_only=True)
        return (await self._call(rpc.RANGE, request)).count

    async def put(self, key: bytes, value: bytes) -> int:
        """Write a key, and return the revision of that."""
        return (await self._call(rpc.PUT, pb.PutRequest(key=key, value=value))).header.revision

    async def last_of_first(self, prefix: str, *, count: int) -> bytes | None:
        """Return the last of the first `count` keys of a prefix; None if there are not more than that.

        Raises InvalidPrefix.
        """
        start = prefixes.checked(prefix)
        end = prefixes.range_end(start)
        answer = await self._call(rpc.RANGE, pb.RangeRequest(key=start, range_end=end, limit=count, keys_only=True))
        return answer.kvs[-1].key if answer.more else None

    async def apply(self, operations: Sequence[Operation], *, only_if: Sequence[Condition] = ()) -> Applied:
        """Make all changes in one transaction, if all conditions hold in it.

        At most `MAX_OPERATIONS`, and about 1 MiB of keys and values: etcd refuses larger requests. Raises
        ConditionNotMet, and TooLarge.
        """
        request = pb.TxnRequest(compare=map(_compare, only_if), success=_operations(operations))
        try:
            answer = await self._call(rpc.TXN, request)
        except TooLarge:
            puts = [each for each in operations if isinstance(each, Put)]
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
        return Applied(answer.header.revision, sum(each.response_delete_range.deleted for each in answer.responses))

    async def delete_prefix(self, prefix: str) -> int:
        """Delete all keys of a prefix in one transaction, and return their number. Raises InvalidPrefix."""
        start = prefixes.checked(prefix)
        request = pb.DeleteRangeRequest(key=start, range_end=prefixes.range_end(start))
        return (await self._call(rpc.DELETE_RANGE, request)).deleted

    async def compact(self, revision: int) -> None:
        """Remove the history of all keys before a revision, which stays readable. Later compactions stay as they are.

        Reads and watches of an earlier revision fail with Compacted from the return on.
        """
        with contextlib.suppress(Compacted):
            await self._call(rpc.COMPACT, pb.CompactionRequest(revision=revision))

    async def grant_lease(self, seconds: int) -> int:
        """Make a lease, with which keys end after so many seconds, and return its number."""
        return (await self._call(rpc.LEASE_GRANT, pb.LeaseGrantRequest(TTL=seconds))).ID

    async def lease_seconds(self, lease: int) -> int:
        """Return the seconds that a lease has left; 0 or less if it has ended."""
        return (await self._call(rpc.LEASE_TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease))).TTL

    async def _range(self, walk: Walk, *, revision: int = 0, serializable: bool = False) -> pb.RangeResponse:
        request = pb.RangeRequest(
            key=walk.start, range_end=walk.end, limit=walk.limit, revision=revision, serializable=serializable
        )
        answer = await self._call(rpc.RANGE, request)
        walk.advance(answer)
        return answer

    async def _call(self, method: rpc.Method[rpc.RequestT, rpc.ResponseT], request: rpc.RequestT) -> rpc.ResponseT:
        return await self.connection.call(method, request, timeout_seconds=self._timeout_seconds)


def _item(pair: pb.KeyValue) -> KeyValue:
    return KeyValue(pair.key, pair.value, pair.mod_revision, pair.lease)


def _operations(operations: Sequence[Operation]) -> Iterable[pb.RequestOp]:
    for each in operations:
        match each:
            case Put():
                yield pb.RequestOp(request_put=pb.PutRequest(key=each.key, value=each.value, lease=each.lease))
            case Delete():
                yield pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=each.key))
            case DeleteRange():
                request = pb.DeleteRangeRequest(key=each.key, range_end=each.range_end)
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
            # True of all keys of the range, none of which can have been created at revision 0.
            start = prefixes.checked(condition.prefix)
            return pb.Compare(
                target=pb.Compare.CREATE, key=start, range_end=prefixes.range_end(start), create_revision=0
            )
