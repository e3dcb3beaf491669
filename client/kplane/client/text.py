"""Answers of the API server that are text: logs of pods, and what programs behind its proxy say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Final

from kplane.provider import Client
from kplane.provider.client.body import query_of
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.wire import error_of, read_body, translated

__all__ = ["read_text", "stream_lines"]

_LONGEST_BYTES: Final = 1 << 20
"""A longer line is cut."""
_CUT: Final = " …"

Params = Mapping[str, str | int | bool | None]


async def read_text(
    client: Client, path: str, *, params: Params | None = None, timeout_seconds: float | None = None
) -> str:
    """Return an answer as text. Raises ApiError if it is a refusal, and Unreachable if there is none in time.

    The deadline is that of the client, unless there is a shorter one.
    """
    request = HttpRequest("GET", path, query_of(params or {}), accept="*/*")
    seconds = min(client.timeout_seconds, timeout_seconds or client.timeout_seconds)
    with client.limits.intake(server=client.config.server) as intake, _translated(client, request):
        async with asyncio.timeout(seconds), client.transport.exchange(request) as response:
            if response.status >= 400:
                raise await error_of(response, intake=intake, asked=str(request))
            return (await read_body(response, intake=intake)).decode(errors="replace")


async def stream_lines(
    client: Client, path: str, *, params: Params | None = None, timeout_seconds: float | None
) -> AsyncGenerator[str, None]:
    """Yield the lines of an answer as they come. A line of more than 1 MiB is cut.

    The answer has to begin within the deadline of the client, and to end within `timeout_seconds`; None: it may go on
    for ever. Raises as `read_text`.
    """
    request = HttpRequest("GET", path, query_of(params or {}), accept="*/*")
    clock, lines = asyncio.get_running_loop().time, _Lines()
    ends = clock() + timeout_seconds if timeout_seconds is not None else None
    with client.limits.intake(server=client.config.server) as intake, _translated(client, request):
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(client.timeout_seconds):
                response = await stack.enter_async_context(client.transport.exchange(request))
                if response.status >= 400:
                    raise await error_of(response, intake=intake, asked=str(request))
            chunks = response.content.iter_any()
            while True:
                # The deadline must not interrupt the reader of the lines, which runs in the same task.
                async with asyncio.timeout_at(ends):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                for line in lines.add(chunk):
                    yield line
    if rest := lines.take():
        yield rest


class _Lines:
    """Puts lines together from the chunks in which they come."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_cut = False

    def add(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that are complete."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._append(end)
            yield self.take()
        self._append(rest)

    def take(self) -> str:
        """Return what there is of the present line, and begin the next one."""
        text = self._line.decode(errors="replace") + (_CUT if self._is_cut else "")
        self._line.clear()
        self._is_cut = False
        return text

    def _append(self, part: bytes) -> None:
        room = _LONGEST_BYTES - len(self._line)
        self._is_cut = self._is_cut or len(part) > room
        self._line += part[:room]


def _translated(client: Client, request: HttpRequest) -> AbstractContextManager[None]:
    return translated(server=client.config.server, asked=str(request))
