"""Writes objects through the gateway, and records acknowledged writes in a ledger to find lost writes."""

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
"""Number of objects of each writer."""
_PAGE: Final = 500
_ANSWER_SECONDS: Final = 90.0
"""Longer than the time for which the gateway holds a request."""
_JSON: Final = {"Content-Type": "application/json"}
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True)
class Entry:
    """Expected uid and value of an object."""

    uid: str
    value: str


@dataclass(slots=True)
class Writes:
    """Results of the write requests."""

    acknowledged: int = 0
    slowest_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


class Ledger:
    """Clients of a control plane that do not retry. Records the last acknowledged write of each object."""

    def __init__(self, config: ClusterConfig, *, filled: dict[str, Entry]) -> None:
        """`filled` has the existing objects, which the clients do not change."""
        self.writes = Writes()
        self._filled = filled
        self._server = config.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl_context(config)),
            headers={"Authorization": f"Bearer {config.token}"} if config.token is not None else {},
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        )
        self._last: dict[str, Entry | None] = {}
        """Last acknowledged entry by object name; None for a deleted object."""
        self._doubtful: set[str] = set()
        """Names of objects whose last write failed. Such a write may have taken effect."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def write(self, *, a_second: float, stop: asyncio.Event) -> None:
        """Create, update, patch and delete objects until `stop` is set. `a_second` is the rate of all writers."""
        self.writes = Writes()
        await asyncio.gather(*(self._write(number, a_second / _WRITERS, stop) for number in range(_WRITERS)))

    async def lost(self) -> list[str]:
        """Compare all objects with the ledger after the last write, and describe each difference."""
        actual = await self._list()
        expected = {**self._filled, **{name: last for name, last in self._last.items() if last is not None}}
        differences = [
            f"{name} is {actual.get(name)} and has to be {entry}"
            for name, entry in expected.items()
            if name not in self._doubtful and actual.get(name) != entry
        ]
        deleted = {name for name, last in self._last.items() if last is None} - self._doubtful
        return differences + [f"{name} was deleted and is there" for name in sorted(deleted & actual.keys())]

    async def _write(self, writer: int, a_second: float, stop: asyncio.Event) -> None:
        generator = random.Random(writer)  # noqa: S311 - reproducible
        began, count = time.monotonic(), 0
        while not stop.is_set():
            count += 1
            name = f"written-{writer}-{generator.randrange(_NAMES)}"
            if name not in self._doubtful:
                await self._change(name, value=f"{writer} {count}", chance=generator.random())
            await asyncio.sleep(max(0.0, began + count / a_second - time.monotonic()))

    async def _change(self, name: str, *, value: str, chance: float) -> None:
        existing, path = self._last.get(name), f"{_OBJECTS}/{name}"
        body: dict[str, Any] = {"metadata": {"name": name}, "data": {"value": value}}
        began = time.monotonic()
        try:
            if existing is None:
                created = await self._send("POST", _OBJECTS, body, _JSON)
                entry: Entry | None = Entry(created["metadata"]["uid"], value)
            elif chance < 0.2:
                await self._send("DELETE", path, None, {})
                entry = None
            else:
                method, kind = ("PUT", _JSON) if chance < 0.6 else ("PATCH", _MERGE)
                await self._send(method, path, body, kind)
                entry = Entry(existing.uid, value)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.writes.errors.append(f"{name}: {type(error).__name__}: {error}")
            self._doubtful.add(name)
        else:
            self.writes.acknowledged += 1
            self._last[name] = entry
        self.writes.slowest_seconds = max(self.writes.slowest_seconds, time.monotonic() - began)

    async def _list(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        after = ""
        while True:
            page = await self._send("GET", f"{_OBJECTS}?limit={_PAGE}&continue={after}", None, {})
            for item in page["items"]:
                metadata = item["metadata"]
                entries[metadata["name"]] = Entry(metadata["uid"], (item.get("data") or {}).get("value", ""))
            after = page["metadata"].get("continue", "")
            if not after:
                return entries

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
    ) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        async with self._session.request(method, f"{self._server}{path}", data=data, headers=headers) as answer:
            if answer.status not in {200, 201}:
                raise aiohttp.ClientError(f"{method} {path}: {answer.status} {(await answer.text())[:300]}")
            content: dict[str, Any] = await answer.json()
            return content
