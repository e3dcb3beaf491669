"""A watch: the stream of changes of a collection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, cast

from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.liveness import IDLE_SECONDS, Liveness
from kplane.provider.client.resources import Resource
from kplane.provider.client.server_warnings import Headers
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.typed import ObjectT, TypedKind
from kplane.provider.client.wire import decode, error_of, read_object, status_error, translated
from kplane.provider.errors import AnswerTooLarge, Unreachable

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Asked", "Watch", "WatchEvent"]

_TYPES: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[ObjectT]):
    """An event: ADDED, MODIFIED, DELETED or BOOKMARK. The object of a bookmark has only a resourceVersion."""

    type: str
    raw: dict[str, Any]
    """The object as a dict."""
    kind: TypedKind[ObjectT] | None = field(default=None, compare=False, repr=False)
    """Class of the objects, if the caller gave a class."""
    source: str = field(default="", compare=False, repr=False)

    @property
    def object(self) -> ObjectT:
        """The object; an instance if the watch has a class, except in a bookmark.

        Raises DecodeFailed if the class cannot decode the object. The watch continues.
        """
        if self.kind is None or self.type == "BOOKMARK":
            return cast("ObjectT", self.raw)
        return self.kind.decode(self.raw, source=self.source)


class Asked(NamedTuple):
    """The kind of a watch, the request that begins it, and the class for its objects."""

    resource: Resource
    request: HttpRequest
    typed: TypedKind[Any] | None = None


class Watch(Generic[ObjectT]):
    """Yields events (`async for event in watch`) inside of `async with watch`, which closes its connection.

    The iteration ends when the server ends the watch. Raises Expired for an old resourceVersion, other ApiErrors, and
    Unreachable if the connection fails, an event is cut off, or no data comes for `idle_timeout_seconds`.
    `open_timeout_seconds` bounds the time until the server answers, once the kind is known.
    """

    def __init__(
        self,
        transport: Transport,
        asking: Callable[[], Awaitable[Asked]],
        *,
        open_timeout_seconds: float,
        idle_timeout_seconds: float,
        limits: AnswerLimits,
        answered: Callable[[HttpRequest, Headers], None],
        liveness: Liveness,
    ) -> None:
        """`asking` makes the request when the watch is opened. `limits.answer_bytes` bounds an event.

        `answered` is called with the headers of the answer. `liveness` detects a server that hangs.
        """
        self._limits = limits
        self._answered = answered
        self._liveness = liveness
        self._transport = transport
        self._asking = asking
        self._asked: Asked | None = None
        self._open_timeout_seconds = open_timeout_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._stack = contextlib.AsyncExitStack()
        self._response: aiohttp.ClientResponse | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probe_at = 0.0
        self._closed = False
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        self._partial_size = 0

    def _is_closed(self) -> bool:
        # A method, because type checkers assume that an await does not change the attribute.
        return self._closed

    @property
    def _what(self) -> str:
        return f"watch of {self._asked.resource.plural}" if self._asked is not None else "watch"

    async def open(self) -> None:
        """Send the request and wait for the head of the answer. Iteration opens the watch by itself."""
        if self._response is not None or self._closed:
            return
        server = self._transport.config.server
        refusal: Exception | None = None
        try:
            self._asked = await self._asking()
            if self._is_closed():
                return
            with translated(server=server, asked=self._what):
                async with asyncio.timeout(self._open_timeout_seconds):
                    response = await self._stack.enter_async_context(self._transport.exchange(self._asked.request))
                    self._answered(self._asked.request, response.headers)
                    if response.status != HTTPStatus.OK:
                        with self._limits.intake(server=server) as intake:
                            refusal = await error_of(response, intake=intake, asked=self._what)
        except BaseException:
            await self.aclose()
            raise
        if refusal is not None:
            await self.aclose()
            raise refusal
        if self._is_closed():  # while it was opened
            await self._stack.aclose()
            return
        self._response = response
        self._schedule_check(min(self._idle_timeout_seconds, IDLE_SECONDS))

    async def aclose(self) -> None:
        """End the watch and close its connection."""
        self._closed = True
        self._response = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        probe, self._probe = self._probe, None
        if probe is not None:
            await end_tasks([probe])
        self._lines.clear()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent[ObjectT]:
        try:
            if not self._lines:
                self._lines.extend(await self.read())
            if self._lines:
                return self._event(self._lines.popleft())
        except BaseException:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def read(self) -> list[bytes]:
        """Return all received events as raw lines; an empty list means that the server ended the watch.

        This method is for callers that decode events themselves. Raises as iteration does, except for ERROR events.
        """
        try:
            await self.open()
            while (lines := await self._read()) is not None:
                if lines:
                    return lines
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        return []

    async def _read(self) -> list[bytes] | None:
        if self._response is None:
            return None
        server = self._transport.config.server
        self._waiting_since = asyncio.get_running_loop().time()
        try:
            chunk = await self._response.content.readany()
        except Exception:
            with translated(server=server, asked=self._what):
                raise
        finally:
            self._waiting_since = None
        self._liveness.heard()
        if not chunk:
            if self._partial_size:
                raise Unreachable(f"{self._what}: {server} ended it in the middle of an event", kind="connect")
            return None
        return self._split(chunk, server=server)

    def _schedule_check(self, seconds: float) -> None:
        # A single timer for the whole watch, because a timer for each read costs more than the read.
        self._watchdog = asyncio.get_running_loop().call_later(seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Fail the pending read if it takes too long, and check a silent server."""
        now, idle_seconds = asyncio.get_running_loop().time(), self._idle_timeout_seconds
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        if waited >= idle_seconds:
            self._fail(f"sent nothing for {idle_seconds:g} s")
            return
        if waited >= IDLE_SECONDS and now >= self._probe_at and self._probe is None:
            self._probe = asyncio.create_task(self._probe_server(waited), name=f"probe for the {self._what}")
        due = max(IDLE_SECONDS - waited, self._probe_at - now)
        # A running probe schedules the next look itself.
        self._schedule_check(min(idle_seconds - waited, due) if due > 0 else idle_seconds - waited)

    async def _probe_server(self, waited: float) -> None:
        try:
            seconds = await self._liveness.check()
        except Unreachable as error:
            self._fail(f"sent nothing for {waited:.0f} s, and answers nothing else: {error}")
        else:
            self._probe_at = asyncio.get_running_loop().time() + seconds
            self._probe = None
            if self._watchdog is not None and self._response is not None:
                self._watchdog.cancel()
                self._check_idle()

    def _fail(self, why: str) -> None:
        if self._response is not None:
            what = f"{self._what}: {self._transport.config.server}"
            self._response.content.set_exception(Unreachable(f"{what} {why}", kind="timeout"))

    def _split(self, chunk: bytes, *, server: str) -> list[bytes]:
        head, separator, rest = chunk.rpartition(b"\n")
        if not separator:
            self._partial.append(chunk)
            self._partial_size += len(chunk)
            if self._partial_size > self._limits.answer_bytes:
                raise AnswerTooLarge(f"{server} sent an event of more than {self._limits.answer_bytes} bytes; refused")
            return []
        complete = b"".join([*self._partial, head])
        self._partial = [rest] if rest else []
        self._partial_size = len(rest)
        lines = [line for line in complete.split(b"\n") if line.strip()]
        if self._limits.values is not None:
            for line in lines:
                with self._limits.intake(server=server) as intake:
                    intake.parse(line)
        received = self._asked.request.received if self._asked is not None else None
        return lines if received is None else [received(line) for line in lines]

    def _event(self, line: bytes) -> WatchEvent[ObjectT]:
        server = self._transport.config.server
        event = decode(line, server=server)
        kind = event.get("type") if isinstance(event, dict) else None
        content = event.get("object") if isinstance(event, dict) else None
        if kind == "ERROR" and isinstance(content, dict):
            raise status_error(content, asked=self._what)
        if kind not in _TYPES:
            raise Unreachable(f"{server} sent something that is no watch event", kind="protocol")
        assert self._asked is not None  # noqa: S101 - it was opened
        resource = self._asked.resource
        obj = read_object(content, server=server, api_version=resource.api_version, kind=resource.kind)
        return WatchEvent(str(kind), obj, self._asked.typed, server)
