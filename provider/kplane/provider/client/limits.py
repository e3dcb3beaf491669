"""Limits for the answers of a server: bytes, number of values, and memory of the values."""

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
_VALUE_TOKENS: Final = (b",", b"[", b"{")


class Allowance:
    """Limits the memory of concurrent answers of many servers. Answers of up to 64 KiB do not count.

    An answer reserves its own bytes, and 100 bytes for each value, until the client returns it. So N concurrent calls
    need at most `size_bytes` plus N times 64 KiB.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes: Final = size_bytes
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """Reserved memory, in bytes."""
        return self._taken_bytes

    def take(self, amount: int, *, server: str) -> None:
        """Reserve memory. Raises AnswerTooLarge if too little memory is left; a caller may retry later."""
        if self._taken_bytes + amount > self.size_bytes:
            raise AnswerTooLarge(
                f"{server}: the answer was not taken in, because large answers of many servers are under way: together"
                f" {self.size_bytes // _MIB} MiB of memory at most"
            )
        self._taken_bytes += amount

    def give_back(self, amount: int) -> None:
        """Release reserved memory."""
        self._taken_bytes -= amount


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits the answers that a `Client` accepts. A larger answer raises AnswerTooLarge, and is dropped at once.

    `answer_bytes` limits a decompressed answer, and `list_bytes` all pages of a list (None: only the deadline limits a
    list). `values` limits the number of values in an answer or a list, because four megabytes of brackets need 400 MiB
    when parsed. The client counts commas and brackets before it parses; with None it does not count. `together` limits
    the answers of all clients that share it. The defaults are for a trusted server.
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
        """Count bytes and values of a call. The end of the context releases the memory of the call in `together`."""
        intake = Intake(self, server=server, bytes_at_most=self.list_bytes if is_list else self.answer_bytes)
        try:
            yield intake
        finally:
            intake.give_back()


class Intake:
    """Counts bytes and values that a call receives: an answer, or the pages of a list."""

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
        """Return the error for an answer of more than `size_bytes`."""
        size = f"{size_bytes // _MIB} MiB" if size_bytes >= _MIB else f"{size_bytes} bytes"
        return AnswerTooLarge(f"{self.server} answered with more than {size}; refused")

    def read(self, size_bytes: int) -> None:
        """Count received bytes. Raises AnswerTooLarge above a limit."""
        self._bytes += size_bytes
        if self._bytes_at_most is not None and self._bytes > self._bytes_at_most:
            raise self.too_large(self._bytes_at_most)
        self._take(size_bytes)

    def parse(self, body: bytes) -> None:
        """Count the values of a body before it is parsed, and their memory. Raises AnswerTooLarge above a limit."""
        self._take(self.count(body) * _VALUE_BYTES)

    def count(self, body: bytes) -> int:
        """Count and return the values of a body, without memory for them. Raises AnswerTooLarge above the limit."""
        if self._limits.values is None:
            return 0
        values = sum(body.count(token) for token in _VALUE_TOKENS)
        self._values += values
        if self._values > self._limits.values:
            raise AnswerTooLarge(f"{self.server} answered with more than {self._limits.values} values; refused")
        return values

    def give_back(self) -> None:
        """Release the memory of the call, whose answer was returned or dropped."""
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
