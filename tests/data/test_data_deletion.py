"""Deletion of many keys, against a fake etcd that counts keys like etcd."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from typing_extensions import override

from kplane.data import Client, Owner, delete_owned, owner_key
from kplane.data import owner as owners
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.rpc import RANGE

_PREFIX = "/clusters/acme/"


class Etcd(Client):
    """Keeps sorted keys. A Range counts all keys up to the end of the range, whatever its limit."""

    def __init__(self, keys: set[bytes]) -> None:
        self.keys = sorted(keys)
        self.counted = 0
        self.deletions: list[int] = []
        self._timeout_seconds = 1.0

    @override
    async def _call(self, method: Any, request: Any) -> Any:
        if method is RANGE:
            assert request.keys_only
            begin, end = self._within(request)
            self.counted += end - begin
            page = self.keys[begin : min(end, begin + request.limit)]
            pairs = [pb.KeyValue(key=key) for key in page]
            return pb.RangeResponse(kvs=pairs, count=end - begin, more=len(page) < end - begin)
        return pb.TxnResponse(succeeded=True, responses=[self._delete(operation) for operation in request.success])

    def _delete(self, operation: Any) -> pb.ResponseOp:
        begin, end = self._within(operation.request_delete_range)
        del self.keys[begin:end]
        self.deletions.append(end - begin)
        return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=end - begin))

    def _within(self, request: Any) -> tuple[int, int]:
        return bisect_left(self.keys, request.key), bisect_left(self.keys, request.range_end or request.key + b"\0")


async def test_deletion_counts_each_key_a_few_times_only() -> None:
    keys = {f"{_PREFIX}configmaps/default/{number:06}".encode() for number in range(50_000)}
    etcd = Etcd(keys | {owner_key(_PREFIX), b"/clusters/other/key"})
    assert await delete_owned(etcd, _PREFIX, owner=Owner("6f1c")) == len(keys)
    assert etcd.keys == [b"/clusters/other/key"]
    # With the end of the prefix for each range, etcd would count each key 25 times.
    assert etcd.counted < 15 * len(keys)
    assert max(etcd.deletions) <= owners._CHUNK


async def test_deletion_of_few_keys_is_one_transaction_after_the_identity() -> None:
    keys = {f"{_PREFIX}configmaps/{number}".encode() for number in range(20)}
    etcd = Etcd(keys | {owner_key(_PREFIX)})
    assert await delete_owned(etcd, _PREFIX, owner=Owner("6f1c")) == 20
    # The identity, which this prefix lacks; then the keys together with the owner key.
    assert etcd.deletions == [0, 20, 1]
