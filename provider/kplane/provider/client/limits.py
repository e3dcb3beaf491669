"""Bounds on what a server may have us take in: bytes, items, and the memory that their values need once parsed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kplane.provider.errors import AnswerTooLarge

__all__ = ["Allowance", "AnswerLimits", "Intake"]

_MIB: Final = 1024**2
_VALUE_BYTES: Final = 100
"""What a parsed value takes; measured with orjson: 64 bytes for a nested list, and 100 for a key with its value."""
_SMALL_BYTES: Final = 64 * 1024
"""An answer of this much memory is always let in: the answers that large ones crowd out are large ones."""
_OPENING: Final = (b",", b"[", b"{")


class Allowance:
    """Memory that the answers of many servers may take at once, those of up to 64 KiB left out; one for all clients.

    An answer counts from its first byte until it was handed over: its bytes, and 100 for each value in it. So whatever
    N calls at once are answered, it is no more than `size_bytes` and N times 64 KiB.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes: Final = size_bytes
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """What is taken now."""
        return self._taken_bytes

    def take(self, amount: int, *, server: str) -> None:
        """Raise AnswerTooLarge if so much is not left: whoever asked tries again later."""
        if self._taken_bytes + amount > self.size_bytes:
            raise AnswerTooLarge(
                f"{server}: the answer was not taken in, because large answers of many servers are under way: together"
                f" {self.size_bytes // _MIB} MiB of memory at most"
            )
        self._taken_bytes += amount

    def give_back(self, amount: int) -> None:
        """Free what was taken."""
        self._taken_bytes -= amount


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """What a `Client` takes in at most; beyond, a call raises AnswerTooLarge, and what was read is dropped at once.

    `answer_bytes` is the size of one answer, decompressed; `list_bytes` that of all pages of one list together (None:
    each page is bounded, and their number only by the deadline). `values` is how many values one answer, or all pages
    of a list, may have: four megabytes of brackets are 400 MiB once they are parsed. They are counted before that, by
    the commas and brackets, also those in texts; None does not count. `together` bounds the answers of all clients that
    it is given to. The defaults are for a server that is trusted.
    """

    answer_bytes: int = 64 * _MIB
    list_bytes: int | None = None
    values: int | None = None
    together: Allowance | None = None

    @contextlib.contextmanager
    def intake(self, *, server: str, is_list: bool = False) -> Iterator[Intake]:
        """Count what one call takes in; its part of `together` is free again at the end."""
        intake = Intake(self, server=server, bytes_at_most=self.list_bytes if is_list else self.answer_bytes)
        try:
            yield intake
        finally:
            intake.give_back()


class Intake:
    """What one call has taken in so far: a single answer, or the pages of a list."""

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
        """Say that an answer is longer than that."""
        size = f"{size_bytes // _MIB} MiB" if size_bytes >= _MIB else f"{size_bytes} bytes"
        return AnswerTooLarge(f"{self.server} answered with more than {size}; refused")

    def read(self, size_bytes: int) -> None:
        """Count bytes that were received."""
        self._bytes += size_bytes
        if self._bytes_at_most is not None and self._bytes > self._bytes_at_most:
            raise self.too_large(self._bytes_at_most)
        self._take(size_bytes)

    def parse(self, body: bytes) -> None:
        """Count the values in what is about to be parsed, and the memory that they will take."""
        self._take(self.count(body) * _VALUE_BYTES)

    def count(self, body: bytes) -> int:
        """Count the values in what stays bytes."""
        if self._limits.values is None:
            return 0
        values = sum(body.count(each) for each in _OPENING)
        self._values += values
        if self._values > self._limits.values:
            raise AnswerTooLarge(f"{self.server} answered with more than {self._limits.values} values; refused")
        return values

    def give_back(self) -> None:
        """The answer was handed over, or dropped."""
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
