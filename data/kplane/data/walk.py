"""Iteration over the keys of a prefix: chooses the limit and the end of each Range request.

etcd's Range counts all keys up to the end of the range in each call, even if the limit is small. A nearby end keeps
this count small. Otherwise the time to read a prefix grows with the square of its number of keys.
"""

from __future__ import annotations

from typing import Final

from kplane.data import prefix as prefixes
from kplane.data._proto import etcd_pb2 as pb

__all__ = ["Walk"]

_MOST_COUNTED: Final = 10_000
"""Number of keys that etcd may count for a page before the walk narrows the range. etcd counts 10 million a second."""


class Walk:
    """Walk through a prefix: read `limit` keys from `start` to `end`, call `advance`, and repeat until `ended`."""

    def __init__(self, prefix: str, *, first: int, most: int, size: int) -> None:
        """Begin at the first key. Raises InvalidPrefix.

        `first` is the first limit. Later limits follow the size of the answers: about `size` bytes in each answer, and
        at most `most` keys.
        """
        self._prefix = prefixes.checked(prefix)
        self._within = self._prefix
        """Common beginning of the keys up to `end`."""
        self._step = 1
        """Number of bytes that `_widen` removes from `_within` when the range has no more keys."""
        self._most = most
        self._size = size
        self.start = self._prefix
        self.end = prefixes.range_end(self._prefix)
        self.limit = first
        self.ended = False

    def halve(self) -> bool:
        """Halve the limit, because the answer was too large. Return False if the limit is a single key already."""
        self.limit, halved = max(1, self.limit // 2), self.limit > 1
        return halved

    def advance(self, answer: pb.RangeResponse) -> None:
        """Continue after the keys of an answer."""
        keys = answer.kvs
        if keys:
            self.limit = max(1, min(self._most, 2 * self.limit, self._size * len(keys) // answer.ByteSize()))
        if answer.more:
            self.start = keys[-1].key + b"\0"
            if answer.count > _MOST_COUNTED:
                self._narrow(keys[0].key, keys[-1].key)
        elif self._within == self._prefix:
            self.ended = True
        else:
            self._widen()

    def _narrow(self, first: bytes, last: bytes) -> None:
        """Narrow the range to keys with the common beginning of the last page, or with a byte less if that is narrower.

        A range without the last byte also has the neighbours of the page.
        """
        pairs = zip(first, last, strict=False)
        shared = first[: next((place for place, (left, right) in enumerate(pairs) if left != right), 0)]
        for within in (shared[:-1], shared):
            if len(within) > len(self._within):
                self._within, self._step = within, 1
                self.end = prefixes.range_end(within)
                return

    def _widen(self) -> None:
        self.start = self.end
        self._within = self._within[: max(len(self._prefix), len(self._within) - self._step)]
        # The step doubles: with a fixed step, keys of many lengths would cost a call for each byte.
        self._step *= 2
        self.end = prefixes.range_end(self._within)
