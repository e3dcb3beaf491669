"""Follows the objects of a kind: lists or streams what is there, watches what changes, and retries whatever fails."""

from __future__ import annotations

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
from kplane.provider.client.watch import Watch
from kplane.provider.errors import (
    AnswerTooLarge,
    ApiError,
    Expired,
    Forbidden,
    NotFound,
    ProviderError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

__all__ = ["Feed", "FeedState", "Scope", "Sink", "Streaming"]

log: Final = logging.getLogger(__name__)

FeedState = Literal["connecting", "ready", "unreachable"]

_STEADY_SECONDS: Final = 5.0
_SLICE: Final = 100
"""Number of events that are handled before other tasks get their turn: about a millisecond of work."""
_PATIENCE: Final = 3
"""Number of consecutive failures before a full relist, and before a relist in pages instead of by a stream."""
_STREAM_DEADLINES: Final = 10
_REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class Sink(Protocol):
    """Receives what a `Feed` finds."""

    async def replace(self, entries: list[Entry]) -> None:
        """Take these as all objects that there are."""

    def apply(self, changes: list[Change]) -> None:
        """Take in the next changes; there are no bookmarks among them."""


class Streaming:
    """Remembers whether a cluster refused to stream its objects, so that each feed does not ask again."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = False


@dataclass(frozen=True, slots=True)
class Scope:
    """Selects objects of a kind: of one namespace, by labels, or the one object of a name."""

    namespace: str | None = None
    name: str | None = None
    label_selector: str | None = None

    @override
    def __str__(self) -> str:
        return f"{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"


@dataclass(slots=True)
class _Listing:
    """One list of objects that stay bytes."""

    reader: EntryReader
    entries: list[Entry] = field(default_factory=list)
    resource_version: str = ""

    @property
    def accept(self) -> str:
        """The media type to ask for."""
        return METADATA_LIST if self.reader.metadata_only else JSON

    def add(self, body: bytes, *, intake: Intake) -> str | None:
        """Take in a page and return the token of the next one. Raises Unreachable if the body is no page of a list."""
        intake.count(body)
        found, self.resource_version, token = self.reader.page(body)
        self.entries += found
        return token


class Feed:
    """Hands a sink all objects of a scope, and every change, until cancelled. Retries each failure with a backoff.

    A collection is streamed (KEP-3157, on by default since Kubernetes 1.34) or, if the server refuses, listed in pages.
    Watches resume at the last resourceVersion. The feed relists when that version has expired, and every
    `relist_seconds`, shortened at random by up to half. The regular relist is needed: an API server whose etcd was
    restored to an earlier state waits silently for a version from before (measured).

    One object by its name needs only `get` and `watch` on that name (a Role with `resourceNames`). Each round opens a
    watch with the field selector `metadata.name=<name>` and no resourceVersion, then reads the object. So the feed
    misses no change between the two, knows an absent object as absent, and has no version that could expire. Events of
    the watch from before the read have a lower resourceVersion, and are dropped.
    """

    def __init__(
        self,
        client: Client,
        reader: EntryReader,
        sink: Sink,
        *,
        streaming: Streaming,
        scope: Scope = Scope(),
        relist_seconds: float = 3600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.state: FeedState = "connecting"
        self.error = ""
        """The last failure; empty if there is none now."""
        self.restarts: Final[Counter[str]] = Counter()
        """Number of watches that ended, by reason: closed, expired, refused, unreachable, failed."""
        self._client = client
        self._reader = reader
        self._resource = reader.resource
        self._sink = sink
        self._streaming = streaming
        self._scope = scope
        self._relist_seconds = relist_seconds
        self._watch_seconds = watch_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._backoff = backoff or Backoff(initial_seconds=0.5, maximum_seconds=30.0, factor=1.5)
        self._resource_version: str | None = None
        self._relist_at = 0.0
        self._read_version = 0
        """resourceVersion of the one object when it was read; 0 for collections."""

    @override
    def __str__(self) -> str:
        return f"{self._resource.plural}{self._scope}"

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
                self.restarts["closed"] += 1
            except Expired as error:
                self._resource_version = None
                self.restarts["expired"] += 1
                # One expired version is normal; the server has a problem only if it repeats.
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
                log.exception("failed to watch %s: unexpected error", self)
                self._resource_version = None
                self.restarts["failed"] += 1
                await self._pause(error)

    def _passes(self, error: ProviderError) -> bool:
        """Whether the next watch can resume at the same resourceVersion."""
        if isinstance(error, (Unauthorized, Forbidden, ServerError)):
            return self._backoff.failures < _PATIENCE
        return isinstance(error, TooManyRequests) or not isinstance(error, (ApiError, AnswerTooLarge))

    @contextlib.contextmanager
    def _living(self, seconds: float) -> Iterator[None]:
        """Reset the backoff only if the watch lived for a while.

        Otherwise a server that ends each watch at once would be asked in a loop.
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
            raise Unreachable(f"the watch of {self} ended as soon as it began", kind="protocol")

    async def _pause(self, error: Exception) -> None:
        self.state, self.error = "unreachable", str(error) or type(error).__name__
        delay = self._backoff.next_delay()
        asked = error.retry_after_seconds if isinstance(error, TooManyRequests) else None
        delay = max(delay, min(asked or 0.0, 60.0))
        level = logging.INFO if self._backoff.failures == 1 else logging.WARNING
        log.log(level, "failed to watch %s: %s; retrying in %.1f s", self, error, delay)
        await asyncio.sleep(delay)

    async def _follow(self) -> None:
        if self._scope.name is not None:
            await self._follow_object(self._scope.name)
            return
        now = asyncio.get_running_loop().time()
        if self._resource_version is None or now >= self._relist_at:
            if not self._streaming.refused and self._backoff.failures < _PATIENCE and await self._stream():
                return
            listing = await self._client.collect(
                lambda: _Listing(self._reader),
                self._resource,
                namespace=self._scope.namespace,
                label_selector=self._scope.label_selector,
            )
            await self._begin(listing.entries, listing.resource_version)
        # The watch must end when the next relist is due.
        left = max(1.0, self._relist_at - asyncio.get_running_loop().time())
        seconds = min(self._watch_seconds * random.uniform(0.8, 1.0), left)  # noqa: S311
        async with self._watch(seconds=seconds, resource_version=self._resource_version) as watch:
            await watch.open()
            with self._living(seconds):
                await self._consume(watch)

    async def _follow_object(self, name: str) -> None:
        seconds = min(self._watch_seconds, self._relist_seconds) * random.uniform(0.8, 1.0)  # noqa: S311
        async with self._watch(seconds=seconds) as watch:
            await watch.open()
            try:
                found = await self._client.get(self._resource, name, namespace=self._scope.namespace)
            except NotFound:
                entries: list[Entry] = []
            else:
                entries = [self._reader.encode(found)]
            self._read_version = max(map(_number, entries), default=0)
            await self._sink.replace(entries)
            with self._living(seconds):
                await self._consume(watch)

    async def _stream(self) -> bool:
        """Have the server stream all objects, then follow. Returns False if the server cannot."""
        server = self._client.config.server
        seconds = min(self._watch_seconds * random.uniform(0.8, 1.0), self._relist_seconds)  # noqa: S311
        async with self._watch(seconds=seconds, initial_events=True) as watch:
            try:
                await watch.open()
            except ApiError as error:
                if error.status not in _REFUSALS:
                    raise
                log.info("listing %s of %s in pages: the server refuses to stream them: %s", self, server, error)
                self._streaming.refused = True
                return False
            lines = await self._initial(watch)
            if lines is None:
                log.info("listing %s of %s in pages: the stream has no end of the initial objects", self, server)
                self._streaming.refused = True
                return False
            with self._living(seconds):
                await self._take(lines)
                await self._consume(watch)
        return True

    async def _initial(self, watch: Watch) -> list[bytes] | None:
        """Read the initial objects. Returns the lines after them, or None if the server never ends them."""
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
        raise Unreachable(f"the watch of {self} ended before all objects were sent", kind="protocol")

    async def _next(self, watch: Watch) -> list[bytes]:
        async with asyncio.timeout(self._client.timeout_seconds):
            return await watch.read()

    async def _begin(self, entries: list[Entry], resource_version: str) -> None:
        relist_seconds = self._relist_seconds * random.uniform(0.5, 1.0)  # noqa: S311
        self._relist_at = asyncio.get_running_loop().time() + relist_seconds
        await self._sink.replace(entries)
        self._resource_version = resource_version

    def _watch(self, *, seconds: float, resource_version: str | None = None, initial_events: bool = False) -> Watch:
        return self._client.watch(
            self._resource,
            resource_version=resource_version,
            namespace=self._scope.namespace,
            label_selector=self._scope.label_selector,
            field_selector=None if self._scope.name is None else f"metadata.name={self._scope.name}",
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
        news = [change for change in changes if change.type != "BOOKMARK"]
        if self._read_version:
            # The watch of one object repeats events from before the object was read.
            news = [change for change in news if not 0 < _number(change.entry) < self._read_version]
        self._sink.apply(news)
        if changes:
            self._resource_version = changes[-1].entry.resource_version or self._resource_version


def _number(entry: Entry) -> int:
    """Return a resourceVersion as a number: those of one server grow. 0 if it is no number."""
    return int(entry.resource_version) if entry.resource_version.isdecimal() else 0
