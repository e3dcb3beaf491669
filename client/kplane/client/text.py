"""Answers of the API server that are text: logs of pods, and what programs behind its proxy say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager

from kplane.provider import Client
from kplane.provider.client.body import query_of
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.wire import error_of, read_body, translated

__all__ = ["read_text", "stream_lines"]

Params = Mapping[str, str | int | bool | None]


async def read_text(client: Client, path: str, *, params: Params | None = None) -> str:
    """Return an answer as text. Raises ApiError if it is a refusal, and Unreachable if there is none in time."""
    request = HttpRequest("GET", path, query_of(params or {}), accept="*/*")
    with client.limits.intake(server=client.config.server) as intake, _translated(client, request):
        async with asyncio.timeout(client.timeout_seconds), client.transport.exchange(request) as response:
            if response.status >= 400:
                raise await error_of(response, intake=intake, asked=str(request))
            return (await read_body(response, intake=intake)).decode(errors="replace")


async def stream_lines(client: Client, path: str, *, params: Params | None = None) -> AsyncGenerator[str, None]:
    """Yield the lines of an answer as they come, until the server ends it, however long that is.

    Raises as `read_text`.
    """
    request = HttpRequest("GET", path, query_of(params or {}), accept="*/*")
    rest = b""
    with client.limits.intake(server=client.config.server) as intake, _translated(client, request):
        async with client.transport.exchange(request) as response:
            if response.status >= 400:
                raise await error_of(response, intake=intake, asked=str(request))
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _translated(client: Client, request: HttpRequest) -> AbstractContextManager[None]:
    return translated(server=client.config.server, asked=str(request))
