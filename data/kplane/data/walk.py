"""The way of a reader through the keys of a prefix: how many keys to ask for next, and up to which end.

etcd's Range counts all keys up to the end of the range in each call, however few the limit asks for. An end nearby
keeps this count small. Otherwise the time to read a prefix grows with the square of its number of keys.
"""

from __future__ import annotations

from typing import Final

from kplane.data import prefix as prefixes
from kplane.data._proto import etcd_pb2 as pb

__all__ = ["Walk"]

_MOST_COUNTED: Final = 10_000
"""Keys that etcd may count beside a page. It counts some 10 million a second."""


class Walk:
    """Walks through a prefix: ask for `limit` keys from `start` to `end`, then call `advance`, until it has `ended`."""

    def __init__(self, prefix: str, *, first: int, most: int, size: int) -> None:
        """Begin at the first key. Raises InvalidPrefix.

        The limit is `first` keys at first, and later as many as weigh about `size` bytes, but not more than `most`.
        """
        self._prefix = prefixes.checked(prefix)
        self._within = self._prefix
        """The keys up to `end` begin with this."""
        self._step = 1
        """Bytes that are cut off when no key is left there."""
        self._most = most
        self._size = size
        self.start = self._prefix
        self.end = prefixes.range_end(self._prefix)
        self.limit = first
        self.ended = False

    def halve(self) -> bool:
        """Ask for fewer keys, because the answer was too large; False if a single key is too large."""
        self.limit, halved = max(1, self.limit // 2), self.limit > 1
        return halved

    def advance(self, answer: pb.RangeResponse) -> None:
        """Continue behind the keys of an answer."""
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
        """Read the neighbours of the last page: keys that begin as its keys do, but for one byte if that is less."""
        pairs = zip(first, last, strict=False)
        shared = first[: next((place for place, (one, other) in enumerate(pairs) if one != other), 0)]
        for within in (shared[:-1], shared):
            if len(within) > len(self._within):
                self._within, self._step = within, 1
                self.end = prefixes.range_end(within)
                return

    def _widen(self) -> None:
        self.start = self.end
        self._within = self._within[: max(len(self._prefix), len(self._within) - self._step)]
        # Otherwise keys of many lengths would cost a call for each byte.
        self._step *= 2
        self.end = prefixes.range_end(self._within)
