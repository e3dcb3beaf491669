"""Mutating requests in flight during a write hold, with method, path, client and start.

Envoy has no list of requests, but can log each open request every two seconds. Envoy logs only mutating requests, and
only during a write hold.
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
"""Maximum number of listed requests of a control plane, the oldest first."""
_MAX_CHANGES: Final = 1000
"""Maximum number of remembered requests. Beyond it, the oldest requests stay."""
_MAX_BYTES: Final = 1 << 20
"""Maximum number of bytes of a read, and of the file."""
_PATH_LENGTH: Final = 120
_METHOD_LENGTH: Final = 16
_CLIENT_LENGTH: Final = 45
_CURRENT_SECONDS: Final = 5.0
"""Seconds after the last line of a request from which it counts as ended. Lines come every two seconds, and Envoy
writes them within a second.
"""
_LOOK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Change:
    """Mutating request without a response. Its texts come from a tenant, so they are cut and made printable."""

    key: str
    """Key of the control plane."""
    began: datetime
    method: str
    path: str
    """Path without the query."""
    client: str
    """Address of the client."""

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Self:
        """Parse a line of Envoy's log.

        Raises ValueError, TypeError, KeyError or OverflowError if the line describes no mutating request that an API
        server has received.
        """
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
        """Description of the request in the Lease."""
        began = self.began.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"method": self.method, "path": self.path, "client": self.client, "began": began}


class ChangesInFlight:
    """Reads Envoy's log of open requests, and switches this log on and off."""

    def __init__(
        self, file: Path, *, administration: Administration, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file` is the log file to which Envoy appends."""
        self._file = file
        self._administration = administration
        self._clock = clock
        self._offset = 0
        self._looked = -math.inf
        self._recording: bool | None = None
        self._seen: dict[str, tuple[float, Change]] = {}
        """Time of the last line, and the request of this line, by Envoy's identifier of the request."""

    async def record(self, *, wanted: bool) -> None:
        """Switch the log on or off.

        Raises OSError, aiohttp.ClientError or TimeoutError if Envoy does not respond.
        """
        if wanted == self._recording:
            return
        await self._administration.set_runtime(RECORDING, 100 if wanted else 0)
        self._recording = wanted
        self._seen = {}
        self._empty()

    def look(self) -> None:
        """Read the lines that Envoy has written since the last look.

        Returns at once after a look within the last `_LOOK_SECONDS`. An unreadable file counts as a file without new
        lines.
        """
        now = self._clock()
        if now < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        with contextlib.suppress(OSError):
            for line in self._new_lines():
                with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                    entry = orjson.loads(line)
                    name = str(entry["id"])
                    self._seen[name] = now, Change.from_line(entry)
        current = [(name, seen) for name, seen in self._seen.items() if now < seen[0] + _CURRENT_SECONDS]
        current.sort(key=lambda each: each[1][1].began)
        self._seen = dict(current[:_MAX_CHANGES])

    def oldest(self, key: str) -> Sequence[Change]:
        """Return the oldest mutating requests in flight to a control plane."""
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
        """Truncate the file. Envoy opens it for appending, so its next line goes to the new end."""
        self._offset = 0
        with contextlib.suppress(OSError):
            os.truncate(self._file, 0)


def _shown(value: object, *, length: int) -> str:
    text = "".join(character if character.isprintable() else "?" for character in str(value)[: length + 1])
    return text if len(text) <= length else f"{text[: length - 1]}…"
