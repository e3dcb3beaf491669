"""Lines of a text answer, while the server sends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import aiohttp

from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.wire import error_of, translated

__all__ = ["Lines"]

_LONGEST_BYTES: Final = 1 << 20
_CUT: Final = " …"


class Lines:
    """Yields the lines of an answer: `async with lines: async for line in lines`. Leaving closes the connection.

    A line of more than 1 MiB is cut, and ends with `…`. Bytes that are no UTF-8 are replaced. The answer has to begin,
    and each part of it has to come, within `idle_timeout_seconds` (None: no bound, except that of connecting). A
    refusal has to be complete within `timeout_seconds`. Raises ApiError if the server refuses, and Unreachable if the
    connection fails.
    """

    def __init__(
        self,
        transport: Transport,
        request: HttpRequest,
        *,
        timeout_seconds: float,
        idle_timeout_seconds: float | None,
        limits: AnswerLimits,
    ) -> None:
        self._transport = transport
        self._request = request
        self._timeout_seconds = timeout_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._limits = limits
        self._stack = contextlib.AsyncExitStack()
        self._response: aiohttp.ClientResponse | None = None
        self._lines: deque[str] = deque()
        self._joiner = _Joiner()
        self._ended = False

    async def __aenter__(self) -> Self:
        try:
            with self._translated():
                # A kubelet sends the header of a log with the first line, so a quiet log has no header yet.
                async with asyncio.timeout(self._idle_timeout_seconds):
                    response = await self._stack.enter_async_context(self._transport.exchange(self._request))
                async with asyncio.timeout(self._timeout_seconds):
                    await self._require_success(response)
        except BaseException:
            await self._stack.aclose()
            raise
        self._response = response
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._response = None
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._lines:
            if self._response is None or self._ended:
                raise StopAsyncIteration
            with self._translated():
                async with asyncio.timeout(self._idle_timeout_seconds):
                    chunk = await self._response.content.readany()
            if chunk:
                self._lines.extend(self._joiner.add(chunk))
            else:
                self._ended = True
                self._lines.extend(self._joiner.rest())
        return self._lines.popleft()

    async def _require_success(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 300:
            with self._limits.intake(server=self._transport.config.server) as intake:
                raise await error_of(response, intake=intake, asked=str(self._request))

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(server=self._transport.config.server, asked=str(self._request))


class _Joiner:
    """Joins the chunks of an answer to lines."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_cut = False

    def add(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that the chunk completes."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._append(end)
            yield self._take()
        self._append(rest)

    def rest(self) -> Iterator[str]:
        """Yield the last line if it does not end with a line break."""
        if self._line:
            yield self._take()

    def _take(self) -> str:
        text = self._line.decode(errors="replace") + (_CUT if self._is_cut else "")
        self._line.clear()
        self._is_cut = False
        return text

    def _append(self, part: bytes) -> None:
        room = _LONGEST_BYTES - len(self._line)
        self._is_cut = self._is_cut or len(part) > room
        self._line += part[:room]
