"""Writes objects through the gateway, and keeps a ledger: what was acknowledged has to be there at the end."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

__all__ = ["Entry", "Ledger"]

_OBJECTS: Final = "/api/v1/namespaces/default/configmaps"
_WRITERS: Final = 4
_NAMES: Final = 40
"""Objects of each writer."""
_PAGE: Final = 500
_ANSWER_SECONDS: Final = 90.0
"""More than the gateway lets a request wait."""
_JSON: Final = {"Content-Type": "application/json"}
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What an object has to be."""

    uid: str
    value: str


@dataclass(slots=True)
class Writes:
    """Holds what was answered."""

    acknowledged: int = 0
    slowest_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


class Ledger:
    """Clients of one control plane, which do not retry. Knows of each object the last acknowledged write."""

    def __init__(self, config: ClusterConfig, *, filled: dict[str, Entry]) -> None:
        """`filled` has the objects that are there, and stay as they are."""
        self.writes = Writes()
        self._filled = filled
        self._server = config.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl_context(config)),
            headers={"Authorization": f"Bearer {config.token}"} if config.token is not None else {},
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        )
        self._last: dict[str, Entry | None] = {}
        """By name; None: it was deleted."""
        self._doubtful: set[str] = set()
        """Names of objects whose last write failed: it may have taken effect."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def write(self, *, a_second: float, stop: asyncio.Event) -> None:
        """Create, update, patch and delete objects, so many times a second, until told to stop."""
        self.writes = Writes()
        await asyncio.gather(*(self._write(number, a_second / _WRITERS, stop) for number in range(_WRITERS)))

    async def lost(self) -> list[str]:
        """Compare all objects with the ledger after the last write, and say what is wrong."""
        found = await self._list()
        expected = {**self._filled, **{name: last for name, last in self._last.items() if last is not None}}
        wrong = [
            f"{name} is {found.get(name)} and has to be {entry}"
            for name, entry in expected.items()
            if name not in self._doubtful and found.get(name) != entry
        ]
        deleted = {name for name, last in self._last.items() if last is None} - self._doubtful
        return wrong + [f"{name} was deleted and is there" for name in sorted(deleted & found.keys())]

    async def _write(self, writer: int, a_second: float, stop: asyncio.Event) -> None:
        chance = random.Random(writer)  # noqa: S311 - it has to be the same each time
        began, count = time.monotonic(), 0
        while not stop.is_set():
            count += 1
            name = f"written-{writer}-{chance.randrange(_NAMES)}"
            if name not in self._doubtful:
                await self._change(name, value=f"{writer} {count}", chance=chance.random())
            await asyncio.sleep(max(0.0, began + count / a_second - time.monotonic()))

    async def _change(self, name: str, *, value: str, chance: float) -> None:
        known, path = self._last.get(name), f"{_OBJECTS}/{name}"
        body: dict[str, Any] = {"metadata": {"name": name}, "data": {"value": value}}
        began = time.monotonic()
        try:
            if known is None:
                found = await self._send("POST", _OBJECTS, body, _JSON)
                entry: Entry | None = Entry(found["metadata"]["uid"], value)
            elif chance < 0.2:
                await self._send("DELETE", path, None, {})
                entry = None
            else:
                method, kind = ("PUT", _JSON) if chance < 0.6 else ("PATCH", _MERGE)
                await self._send(method, path, body, kind)
                entry = Entry(known.uid, value)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.writes.errors.append(f"{name}: {type(error).__name__}: {error}")
            self._doubtful.add(name)
        else:
            self.writes.acknowledged += 1
            self._last[name] = entry
        self.writes.slowest_seconds = max(self.writes.slowest_seconds, time.monotonic() - began)

    async def _list(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        after = ""
        while True:
            page = await self._send("GET", f"{_OBJECTS}?limit={_PAGE}&continue={after}", None, {})
            for item in page["items"]:
                metadata = item["metadata"]
                found[metadata["name"]] = Entry(metadata["uid"], (item.get("data") or {}).get("value", ""))
            after = page["metadata"].get("continue", "")
            if not after:
                return found

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
    ) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        async with self._session.request(method, f"{self._server}{path}", data=data, headers=headers) as answer:
            if answer.status not in {200, 201}:
                raise aiohttp.ClientError(f"{method} {path}: {answer.status} {(await answer.text())[:300]}")
            found: dict[str, Any] = await answer.json()
            return found
