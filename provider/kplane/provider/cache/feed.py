"""Follows a collection for ever: what is there, what changes, and again whenever the server or the way to it fails."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal, NoReturn, Protocol

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.entry import Change, Entry, EntryReader, Key
from kplane.provider.client.client import Client
from kplane.provider.client.limits import Intake
from kplane.provider.client.listing import JSON, METADATA_LIST
from kplane.provider.client.resources import Resource
from kplane.provider.client.watch import Watch
from kplane.provider.errors import (
    AnswerTooLarge,
    ApiError,
    Expired,
    Forbidden,
    ProviderError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

__all__ = ["CollectionFeed", "Feed", "FeedState", "Sink", "Streaming"]

log: Final = logging.getLogger(__name__)

FeedState = Literal["connecting", "ready", "unreachable"]

_STEADY_SECONDS: Final = 5.0
_SLICE: Final = 100
"""So many events are handled in one go: about a millisecond, then others get their turn."""
_PATIENCE: Final = 3
"""So many failures in a row are taken for passing ones: of the server's, then its whole state is asked for again; of
a stream of it, then it is asked for in pages."""
_STREAM_DEADLINES: Final = 10
_REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class Feed(abc.ABC):
    """Goes on with `_follow` whatever happens, each failure later than the one before, until cancelled."""

    def __init__(self, *, relist_seconds: float, watch_seconds: float, backoff: Backoff | None = None) -> None:
        self.state: FeedState = "connecting"
        self.error = ""
        """What the last failure was; empty once it is over."""
        self.restarts: Final[Counter[str]] = Counter()
        """How often a watch ended, by reason: closed, expired, refused, unreachable, failed."""
        self._relist_seconds = relist_seconds
        self._watch_seconds = watch_seconds
        self._backoff = backoff or Backoff(initial_seconds=0.5, maximum_seconds=30.0, factor=1.5)
        self._resource_version: str | None = None
        self._relist_at = 0.0

    @property
    def _outdated(self) -> bool:
        """Whether all has to be asked for again before the next watch."""
        return self._resource_version is None or asyncio.get_running_loop().time() >= self._relist_at

    def _note_listing(self, *, least: float) -> None:
        """All was asked for: again after `relist_seconds`, shortened at random to `least` of them at most."""
        relist_seconds = self._relist_seconds * random.uniform(least, 1.0)  # noqa: S311
        self._relist_at = asyncio.get_running_loop().time() + relist_seconds

    def _next_watch_seconds(self) -> float:
        """How long the next watch is to last: not past the time to ask for all again."""
        left = max(1.0, self._relist_at - asyncio.get_running_loop().time())
        return min(self._watch_seconds * random.uniform(0.8, 1.0), left)  # noqa: S311

    @abc.abstractmethod
    async def _follow(self) -> None:
        """Follow until one watch ends."""

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
                self.restarts["closed"] += 1
            except Expired as error:
                self._resource_version = None
                self.restarts["expired"] += 1
                # That a version expires is no trouble of the server, unless it does so again and again.
                if self._backoff.failures:
                    await self._pause(error)
                else:
                    self._backoff.next_delay()
            except ProviderError as error:
                if not self._passes(error):
                    self._resource_version = None
                self.restarts["refused" if isinstance(error, ApiError) else "unreachable"] += 1
                await self._pause(error)
            except Exception as error:
                log.exception("unexpected failure while following %s", self)
                self._resource_version = None
                self.restarts["failed"] += 1
                await self._pause(error)

    def _passes(self, error: ProviderError) -> bool:
        """Whether it says nothing against the resourceVersion, so that a watch can go on from there."""
        if isinstance(error, (Unauthorized, Forbidden, ServerError)):
            return self._backoff.failures < _PATIENCE
        return isinstance(error, TooManyRequests) or not isinstance(error, (ApiError, AnswerTooLarge))

    @contextlib.contextmanager
    def _living(self, seconds: float) -> Iterator[None]:
        """Take a watch of that many seconds for a success only where it lived for a while.

        Else a server that ends each at once would be asked in a loop.
        """
        self.state, self.error = "ready", ""
        now = asyncio.get_running_loop().time
        steady_seconds, began = min(_STEADY_SECONDS, seconds / 2), now()
        try:
            yield
        finally:
            if now() - began >= steady_seconds:
                self._backoff.reset()
        if now() - began < steady_seconds:
            raise Unreachable(f"watch of {self} ended as soon as it began", kind="protocol")

    async def _pause(self, error: Exception) -> None:
        self.state, self.error = "unreachable", str(error) or type(error).__name__
        delay = self._backoff.next_delay()
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else None
        delay = max(delay, min(asked or 0.0, 60.0))
        level = logging.INFO if self._backoff.failures == 1 else logging.WARNING
        log.log(level, "cannot follow %s, again in %.1f s: %s", self, delay, error)
        await asyncio.sleep(delay)


class Sink(Protocol):
    """Who is told what a `CollectionFeed` finds."""

    async def replace(self, entries: list[Entry]) -> None:
        """This is all there is."""

    def apply(self, changes: list[Change]) -> None:
        """These are the next changes; no bookmarks."""


class Streaming:
    """Remembers of one cluster whether it streams what is there, so that it is not asked for it in vain each time."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = False


@dataclass(slots=True)
class _Listing:
    """One list of objects that stay bytes."""

    reader: EntryReader
    entries: list[Entry] = field(default_factory=list)
    resource_version: str = ""

    @property
    def accept(self) -> str:
        """What to ask for."""
        return METADATA_LIST if self.reader.metadata_only else JSON

    def add(self, body: bytes, *, intake: Intake) -> str | None:
        """Take a page in, and return the token of the next one. Raises Unreachable where it is none of a list."""
        intake.count(body)
        found, self.resource_version, token = self.reader.page(body)
        self.entries += found
        return token


class CollectionFeed(Feed):
    """Tells a sink of all objects of a kind.

    One request does for what is there and what changes, where the server can do that (streaming lists, KEP-3157; on by
    default since Kubernetes 1.34); else pages of a list come first. Watches go on at the last resourceVersion. The
    whole state is asked for again when that has expired, and after `relist_seconds` shortened at random by up to half:
    an etcd that was put back to an earlier state has a server wait silently for a version from before (measured), and
    nothing else finds out.
    """

    def __init__(
        self,
        client: Client,
        reader: EntryReader,
        sink: Sink,
        *,
        streaming: Streaming,
        relist_seconds: float = 3600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(relist_seconds=relist_seconds, watch_seconds=watch_seconds, backoff=backoff)
        self._client = client
        self._reader = reader
        self._resource: Resource = reader.resource
        self._sink = sink
        self._streaming = streaming
        self._idle_timeout_seconds = idle_timeout_seconds

    @override
    def __str__(self) -> str:
        return self._resource.plural

    @override
    async def _follow(self) -> None:
        if self._outdated:
            if not self._streaming.refused and self._backoff.failures < _PATIENCE and await self._stream():
                return
            listing = await self._client.collect(lambda: _Listing(self._reader), self._resource)
            await self._begin(listing.entries, listing.resource_version)
        seconds = self._next_watch_seconds()
        async with self._watch(seconds=seconds) as watch:
            await watch.open()
            with self._living(seconds):
                await self._consume(watch)

    async def _stream(self) -> bool:
        """Have what is there streamed, and follow; returns whether the server could."""
        seconds, server = self._watch_seconds * random.uniform(0.8, 1.0), self._client.config.server  # noqa: S311
        async with self._watch(seconds=seconds, initial_events=True) as watch:
            try:
                await watch.open()
            except ApiError as error:
                if error.status not in _REFUSALS:
                    raise
                log.info("%s: %s are listed in pages: %s", server, self, error)
                self._streaming.refused = True
                return False
            lines = await self._initial(watch)
            if lines is None:
                log.info("%s: %s are listed in pages: it does not say when all were sent", server, self)
                self._streaming.refused = True
                return False
            with self._living(seconds):
                await self._take(lines)
                await self._consume(watch)
        return True

    async def _initial(self, watch: Watch) -> list[bytes] | None:
        """Read what is there; returns the lines that came after it, and None where there is no end to it."""
        present: dict[Key, Entry] = {}
        limits, server = self._client.limits, self._client.config.server
        with limits.intake(server=server, is_list=True) as intake:
            try:
                async with asyncio.timeout(_STREAM_DEADLINES * self._client.timeout_seconds):
                    while lines := await self._next(watch):
                        for number, line in enumerate(lines, start=1):
                            intake.read(len(line))
                            intake.count(line)
                            change = self._reader.change(line)
                            if change.initial_end:
                                await self._begin([*present.values()], change.entry.resource_version)
                                return lines[number:]
                            if change.type == "DELETED":
                                present.pop(change.entry.key, None)
                            elif change.type != "BOOKMARK":
                                present[change.entry.key] = change.entry
            except TimeoutError:
                return None
        raise Unreachable(f"watch of {self} ended before all was sent", kind="protocol")

    async def _next(self, watch: Watch) -> list[bytes]:
        async with asyncio.timeout(self._client.timeout_seconds):
            return await watch.read()

    async def _begin(self, entries: list[Entry], resource_version: str) -> None:
        self._note_listing(least=0.5)
        await self._sink.replace(entries)
        self._resource_version = resource_version

    def _watch(self, *, seconds: float, initial_events: bool = False) -> Watch:
        return self._client.watch(
            self._resource,
            resource_version=None if initial_events else self._resource_version,
            timeout_seconds=seconds,
            idle_timeout_seconds=self._idle_timeout_seconds,
            metadata_only=self._reader.metadata_only,
            initial_events=initial_events,
        )

    async def _consume(self, watch: Watch) -> None:
        while lines := await watch.read():
            await self._take(lines)

    async def _take(self, lines: list[bytes]) -> None:
        for start in range(0, len(lines), _SLICE):
            if start:
                await asyncio.sleep(0)
            changes: list[Change] = []
            try:
                changes.extend(map(self._reader.change, lines[start : start + _SLICE]))
            finally:
                # Also what came before an error.
                self._apply(changes)

    def _apply(self, changes: list[Change]) -> None:
        self._sink.apply([change for change in changes if change.type != "BOOKMARK"])
        if changes:
            self._resource_version = changes[-1].entry.resource_version or self._resource_version
