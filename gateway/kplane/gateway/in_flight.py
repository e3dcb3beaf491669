"""Names the changes that are in flight while a control plane is held: by method, path, client and begin.

Envoy has no list of requests. Every two seconds, it can write a line about each request that is open. It does so for
changes only, and only while a control plane is held.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import orjson

from kplane.gateway.administration import Administration
from kplane.gateway.envoy.access_log import RECORDING

__all__ = ["Change", "ChangesInFlight"]

_SHOWN: Final = 3
"""Changes of one control plane that are named. The oldest come first."""
_MAX_CHANGES: Final = 1000
"""Changes that are remembered. Of more, the oldest stay."""
_MAX_BYTES: Final = 1 << 20
"""Bytes that are read at once, and kept in the file."""
_PATH_LENGTH: Final = 120
_METHOD_LENGTH: Final = 16
_CLIENT_LENGTH: Final = 45
_CURRENT_SECONDS: Final = 5.0
"""A change without a line for longer has ended. Lines come every two seconds, and Envoy writes them within one."""
_LOOK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes something and has no answer yet. Its text comes from a tenant: it is cut and printable."""

    key: str
    """Of the control plane."""
    began: datetime
    method: str
    path: str
    """Without query."""
    client: str
    """The address of the client."""

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Self:
        """Read what Envoy writes. Raises ValueError or TypeError if it is no such line."""
        key, _, part = str(line.get("upstream")).partition("/")
        if not part.endswith("changes"):
            raise ValueError("the request changes nothing, or waits for its control plane")
        return cls(
            key=key,
            began=datetime.fromtimestamp(float(line["began"]), tz=UTC),
            method=_shown(line.get("method"), length=_METHOD_LENGTH),
            path=_shown(line.get("path"), length=_PATH_LENGTH),
            client=_shown(line.get("client"), length=_CLIENT_LENGTH),
        )

    @property
    def described(self) -> dict[str, str]:
        """What the Lease says of it."""
        began = self.began.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"method": self.method, "path": self.path, "client": self.client, "began": began}


class ChangesInFlight:
    """Reads Envoy's lines, and has Envoy write them while they are needed."""

    def __init__(
        self, file: Path, *, administration: Administration, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Envoy appends to `file`."""
        self._file = file
        self._administration = administration
        self._clock = clock
        self._offset = 0
        self._looked = -math.inf
        self._recording: bool | None = None
        self._seen: dict[str, tuple[float, Change]] = {}
        """By the number that Envoy gave the request: when its last line was read, and what that says."""

    async def record(self, *, wanted: bool) -> None:
        """Have Envoy write lines from now on, or none. Raises OSError, aiohttp.ClientError or TimeoutError."""
        if wanted == self._recording:
            return
        await self._administration.set_runtime(RECORDING, 100 if wanted else 0)
        self._recording = wanted
        self._seen = {}
        self._empty()

    def look(self) -> None:
        """Read what Envoy has written since the last look. A file that cannot be read has no news."""
        now = self._clock()
        if now < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        with contextlib.suppress(OSError):
            for line in self._new_lines():
                with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                    found = orjson.loads(line)
                    name = str(found["id"])
                    self._seen[name] = now, Change.from_line(found)
        current = [(name, seen) for name, seen in self._seen.items() if now < seen[0] + _CURRENT_SECONDS]
        current.sort(key=lambda each: each[1][1].began)
        self._seen = dict(current[:_MAX_CHANGES])

    def oldest(self, key: str) -> Sequence[Change]:
        """Return the oldest changes in flight of a control plane."""
        return [change for _, change in self._seen.values() if change.key == key][:_SHOWN]

    def _new_lines(self) -> Sequence[bytes]:
        with self._file.open("rb") as file:
            file.seek(self._offset)
            text = file.read(_MAX_BYTES)
        whole, _, _ = text.rpartition(b"\n")
        self._offset += len(whole) + bool(whole)
        if self._offset >= _MAX_BYTES or len(text) == _MAX_BYTES:
            self._empty()
        return whole.splitlines()

    def _empty(self) -> None:
        """Empty the file. Envoy appends to it, whatever its length is."""
        self._offset = 0
        with contextlib.suppress(OSError):
            os.truncate(self._file, 0)


def _shown(value: object, *, length: int) -> str:
    text = "".join(each if each.isprintable() else "?" for each in str(value)[: length + 1])
    return text if len(text) <= length else f"{text[: length - 1]}…"
