"""Ledger of writes: writes to a control plane without retries, and verifies that each acknowledged write persists."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from kplane.cli.demo.sessions import open_session
from kplane.cli.errors import DemoFailed
from kplane.provider import ClusterConfig

__all__ = ["Ledger"]

_OBJECTS: Final = "/api/v1/namespaces/default/configmaps"
_WRITERS: Final = 4
_PAUSE_SECONDS: Final = 0.03
"""Time between two writes of a writer. Without it, the writers would take the CPU from the control plane."""
_SHOWN: Final = 3
"""Number of lost or failed writes in the error message."""
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}


class Ledger:
    """Creates and patches ConfigMaps. Keeps uid and value of each as of the last acknowledged write."""

    def __init__(self, config: ClusterConfig) -> None:
        """Write to the server of `config` with its credentials."""
        self.acknowledged = 0
        """Acknowledged writes since `writing` began."""
        self.slowest_seconds = 0.0
        self.errors: list[str] = []
        self._server = config.server
        self._entries: dict[str, tuple[str, str]] = {}
        self._numbers = itertools.count(1)
        self._session = open_session(config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def fill(self, objects: int) -> None:
        """Write at least this number of objects, as fast as the server answers."""
        await self._write(lambda: len(self._entries) + len(self.errors) >= objects, pause_seconds=0.0)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write inside the block. Each writer begins its last write after the end of the block."""
        self.acknowledged, self.slowest_seconds = 0, 0.0
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write(ended.is_set, pause_seconds=_PAUSE_SECONDS), name="write")
            try:
                yield
            finally:
                ended.set()

    async def verify(self, name: str) -> None:
        """Compare all objects with the ledger. Raises `DemoFailed` if a write was lost or failed.

        `name` is the name of the control plane, for the error message.
        """
        objects = await self._read()
        lost = [
            f"{key} is {objects.get(key)}, not {entry}"
            for key, entry in self._entries.items()
            if objects.get(key) != entry
        ]
        if lost:
            raise DemoFailed(
                f"failed to keep the data of {name}: {len(lost)} of {len(self._entries)} objects lost an acknowledged "
                f"write; the first: {'; '.join(lost[:_SHOWN])}"
            )
        if self.errors:
            raise DemoFailed(
                f"failed to write into {name} without an error: {len(self.errors)} of its writes got one; "
                f"the first: {'; '.join(self.errors[:_SHOWN])}"
            )

    async def _write(self, ended: Callable[[], bool], *, pause_seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(self._write_one_by_one(ended, pause_seconds), name=f"writer {number}")

    async def _write_one_by_one(self, ended: Callable[[], bool], pause_seconds: float) -> None:
        last = False
        while not last:
            last = ended()
            name = f"entry-{next(self._numbers)}"
            try:
                await self._change("POST", _OBJECTS, name, value="created")
                await asyncio.sleep(pause_seconds)
                await self._change("PATCH", f"{_OBJECTS}/{name}", name, value="patched")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                # The failed write may have taken effect or not, so the ledger cannot know the object.
                self._entries.pop(name, None)
            await asyncio.sleep(pause_seconds)

    async def _change(self, method: str, path: str, name: str, *, value: str) -> None:
        begun = time.monotonic()
        body = {"metadata": {"name": name}, "data": {"value": value}}
        written = await self._send(method, path, body)
        uid, _ = self._entries.get(name, (written["metadata"]["uid"], ""))
        self._entries[name] = (uid, value)
        self.acknowledged += 1
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - begun)

    async def _read(self) -> dict[str, tuple[str, str]]:
        items = (await self._send("GET", _OBJECTS))["items"]
        return {
            item["metadata"]["name"]: (item["metadata"]["uid"], (item.get("data") or {}).get("value", ""))
            for item in items
        }

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = _MERGE if method == "PATCH" else {}
        async with self._session.request(method, f"{self._server}{path}", json=body, headers=headers) as answer:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise aiohttp.ClientError(f"{method} {path}: {answer.status} {await answer.text()}")
            content: dict[str, Any] = await answer.json()
            return content
