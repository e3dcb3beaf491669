"""Bounds on the answers of a server: bytes, items, and the memory of their values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kplane.provider.access.call_limits import CallLimits
from kplane.provider.errors import AnswerTooLarge

__all__ = ["Allowance", "AnswerLimits", "Intake"]

_MIB: Final = 1024**2
_VALUE_BYTES: Final = 100
"""Memory of a parsed value, measured with orjson: 64 bytes for a nested list, 100 for a key with its value."""
_SMALL_BYTES: Final = 64 * 1024
"""Memory up to which an answer is always accepted, so that large answers delay only other large answers."""
_OPENING: Final = (b",", b"[", b"{")


class Allowance:
    """Bounds the memory of concurrent answers of many servers; answers of up to 64 KiB do not count.

    An answer takes its own bytes, and 100 more for each value, from its first byte until it is returned. So N
    concurrent calls take at most `size_bytes` plus N times 64 KiB.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes: Final = size_bytes
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """Memory in use."""
        return self._taken_bytes

    def take(self, amount: int, *, server: str) -> None:
        """Reserve memory. Raises AnswerTooLarge if too little is left; the caller retries later."""
        if self._taken_bytes + amount > self.size_bytes:
            raise AnswerTooLarge(
                f"{server}: the answer was not taken in, because large answers of many servers are under way: together"
                f" {self.size_bytes // _MIB} MiB of memory at most"
            )
        self._taken_bytes += amount

    def give_back(self, amount: int) -> None:
        """Release memory."""
        self._taken_bytes -= amount


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Bounds the answers that a `Client` accepts. A larger answer raises AnswerTooLarge, and is dropped at once.

    `answer_bytes` bounds one decompressed answer, `list_bytes` all pages of a list (None: no bound but the deadline).
    `values` bounds the number of values in an answer or a list, because four megabytes of brackets take 400 MiB once
    parsed; commas and brackets are counted before parsing, None does not count. `together` bounds the answers of all
    clients that share it. The defaults are for a trusted server.
    """

    answer_bytes: int = 64 * _MIB
    list_bytes: int | None = None
    values: int | None = None
    together: Allowance | None = None

    def within(self, calls: CallLimits) -> AnswerLimits:
        """Return these limits, overridden by the limits of a cluster."""
        if (calls.answer_bytes, calls.list_bytes, calls.values) == (None, None, None):
            return self
        return replace(
            self,
            answer_bytes=calls.answer_bytes or self.answer_bytes,
            list_bytes=calls.list_bytes or self.list_bytes,
            values=calls.values or self.values,
        )

    @contextlib.contextmanager
    def intake(self, *, server: str, is_list: bool = False) -> Iterator[Intake]:
        """Count the bytes and values of a call, and release its part of `together` at the end."""
        intake = Intake(self, server=server, bytes_at_most=self.list_bytes if is_list else self.answer_bytes)
        try:
            yield intake
        finally:
            intake.give_back()


class Intake:
    """Counts what one call has received: an answer, or the pages of a list."""

    def __init__(self, limits: AnswerLimits, *, server: str, bytes_at_most: int | None) -> None:
        self.answer_bytes: Final = limits.answer_bytes
        self.server: Final = server
        self._limits = limits
        self._bytes_at_most = bytes_at_most
        self._bytes = 0
        self._values = 0
        self._memory = 0
        self._taken = 0

    def too_large(self, size_bytes: int) -> AnswerTooLarge:
        """Return the error for an answer that is larger than this."""
        size = f"{size_bytes // _MIB} MiB" if size_bytes >= _MIB else f"{size_bytes} bytes"
        return AnswerTooLarge(f"{self.server} answered with more than {size}; refused")

    def read(self, size_bytes: int) -> None:
        """Count received bytes."""
        self._bytes += size_bytes
        if self._bytes_at_most is not None and self._bytes > self._bytes_at_most:
            raise self.too_large(self._bytes_at_most)
        self._take(size_bytes)

    def parse(self, body: bytes) -> None:
        """Count the values of a body before it is parsed, and their memory."""
        self._take(self.count(body) * _VALUE_BYTES)

    def count(self, body: bytes) -> int:
        """Count the values of a body that stays bytes."""
        if self._limits.values is None:
            return 0
        values = sum(body.count(each) for each in _OPENING)
        self._values += values
        if self._values > self._limits.values:
            raise AnswerTooLarge(f"{self.server} answered with more than {self._limits.values} values; refused")
        return values

    def give_back(self) -> None:
        """Release what was taken: the answer was returned, or dropped."""
        if self._limits.together is not None:
            self._limits.together.give_back(self._taken)
        self._taken = 0

    def _take(self, amount: int) -> None:
        self._memory += amount
        together = self._limits.together
        missing = self._memory - self._taken
        if together is None or (self._taken == 0 and self._memory <= _SMALL_BYTES):
            return
        together.take(missing, server=self.server)
        self._taken += missing
