"""Calls of an API server, each with a deadline and with retries of 429."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kplane.provider.aio.overflow import unanswered
from kplane.provider.client.limits import AnswerLimits, Intake
from kplane.provider.client.server_warnings import Headers
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.wire import drop_body, error_of, read_body, translated
from kplane.provider.errors import TooManyRequests, Unreachable

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Calls"]

T = TypeVar("T")


class _Sent:
    """Records whether the body of a write was sent, after its connection was made."""

    def __init__(self) -> None:
        self.is_write = False

    def note_write(self) -> None:
        self.is_write = True


class Calls:
    """Sends requests and reads their answers. The arguments are those of `Client`.

    `answered` is called with the headers of each answer.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_seconds: float,
        keeps_worker: bool,
        before_write: Callable[[], float | None] | None,
        limits: AnswerLimits,
        answered: Callable[[HttpRequest, Headers], None],
    ) -> None:
        self._transport: Final = transport
        self._timeout_seconds = timeout_seconds
        self.waiting: Final[Callable[[], AbstractContextManager[None]]] = nullcontext if keeps_worker else unanswered
        """Opens a context in which a server may leave a request unanswered; see `unanswered`."""
        self._before_write = before_write
        self._limits = limits
        self._answered = answered

    async def body(self, request: HttpRequest, *, intake: Intake, timeout_seconds: float | None = None) -> bytes:
        """Send a request and return the body of the answer. Raises the ApiError of a refusal."""

        async def read(response: aiohttp.ClientResponse) -> bytes:
            return await read_body(response, intake=intake)

        content = await self._call(request, read, timeout_seconds=timeout_seconds)
        return content if request.received is None else request.received(content)

    async def drop(self, request: HttpRequest, *, timeout_seconds: float | None = None) -> None:
        """Send a request and read only the status of the answer."""

        async def drop(response: aiohttp.ClientResponse) -> None:
            await drop_body(response, size_bytes=self._limits.answer_bytes)

        await self._call(request, drop, timeout_seconds=timeout_seconds)

    def require_write(self) -> None:
        """Call `before_write`, which raises if this process may not write now."""
        if self._before_write is not None:
            self._before_write()

    async def _call(
        self,
        request: HttpRequest,
        read: Callable[[aiohttp.ClientResponse], Awaitable[T]],
        *,
        timeout_seconds: float | None = None,
    ) -> T:
        seconds = timeout_seconds if timeout_seconds is not None else self._timeout_seconds
        server, sent = self._transport.config.server, _Sent()
        with self.waiting(), translated(server=server, asked=str(request), is_write_sent=lambda: sent.is_write):
            async with asyncio.timeout(seconds) as deadline:
                while True:
                    sent.is_write = False
                    try:
                        return await self._attempt(request, read, sent)
                    except TooManyRequests as error:
                        pause = (error.retry_after_seconds or 1.0) * random.uniform(1.0, 1.3)  # noqa: S311
                        left = (deadline.when() or 0.0) - asyncio.get_running_loop().time()
                        if pause >= left:
                            raise
                        await asyncio.sleep(pause)

    async def _attempt(
        self, request: HttpRequest, read: Callable[[aiohttp.ClientResponse], Awaitable[T]], sent: _Sent
    ) -> T:
        check = self._before_write
        if request.method == "GET":
            return await self._exchange(request, read, seconds=None)
        if check is None:
            return await self._exchange(replace(request, before_sending=sent.note_write), read, seconds=None)
        seconds, refusals = check(), list[Exception]()
        if seconds is not None:
            request = request.within(seconds)

        def check_again() -> None:
            # Since the first check, the request has waited for a connection, or the process was suspended.
            try:
                check()
            except Exception as refusal:
                refusals.append(refusal)
                raise
            sent.note_write()

        try:
            return await self._exchange(replace(request, before_sending=check_again), read, seconds=seconds)
        except Unreachable:
            for refusal in refusals:
                raise refusal from None
            raise

    async def _exchange(
        self, request: HttpRequest, read: Callable[[aiohttp.ClientResponse], Awaitable[T]], *, seconds: float | None
    ) -> T:
        deadline: AbstractAsyncContextManager[object] = nullcontext() if seconds is None else asyncio.timeout(seconds)
        async with deadline, self._transport.exchange(request) as response:
            self._answered(request, response.headers)
            if not 200 <= response.status < 300:
                with self._limits.intake(server=self._transport.config.server) as intake:
                    raise await error_of(response, intake=intake, asked=str(request))
            return await read(response)
