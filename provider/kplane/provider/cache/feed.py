"""Lists and watches the objects of a kind, as the reflector of client-go does, and retries every failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal, NamedTuple, NoReturn, Protocol

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.entry import Change, Entry, EntryReader, Key, version_of
from kplane.provider.cache.scope import CacheScope
from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.cache.server_state import ServerState
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
    NotServed,
    ProviderError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

__all__ = ["Feed", "FeedState", "Refusal", "Sink", "refusal_of"]

log: Final = logging.getLogger(__name__)

FeedState = Literal["connecting", "ready", "unreachable", "refused"]
"""`refused` concerns this kind alone; `unreachable` concerns the whole server."""

_STEADY_SECONDS: Final = 5.0
_SLICE: Final = 100
"""Number of events that are handled before the loop runs other tasks: about a millisecond of work."""
_NEW_KIND_SECONDS: Final = 5.0
"""Time in which an API server begins to serve a new CustomResourceDefinition."""
_PATIENCE: Final = 3
"""Number of consecutive failures before a full relist, and before a relist in pages instead of by a stream."""
_STREAM_DEADLINES: Final = 10
_REFUSALS: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class _RelistRequested(Exception):
    """Ends a working watch, because its objects are to be listed again."""


class Refusal(NamedTuple):
    """Reason why the server refuses reads of a kind: it does not serve the kind, or RBAC denies the read."""

    reason: Literal["NotServed", "Forbidden"]
    message: str


class Sink(Protocol):
    """Receives the objects and changes of a `Feed`."""

    def begin(self) -> None:
        """Note that a list begins: the objects of the next `replace` are read after this moment."""

    async def replace(self, entries: list[Entry], *, resource_version: str) -> None:
        """Replace all objects by the objects at a resourceVersion, which is empty if it is unknown."""

    def apply(self, changes: list[Change], *, resource_version: str) -> None:
        """Apply the next changes, up to a resourceVersion. Bookmarks are left out."""

    def refused(self) -> None:
        """Note that the server has begun to refuse the kind."""


@dataclass(slots=True)
class _Listing:
    """A list whose objects stay bytes."""

    reader: EntryReader
    entries: list[Entry] = field(default_factory=list)
    resource_version: str = ""

    @property
    def accept(self) -> str:
        """Media type for the Accept header."""
        return METADATA_LIST if self.reader.metadata_only else JSON

    def add(self, body: bytes, *, intake: Intake) -> str | None:
        """Add a page and return the token of the next page. Raises Unreachable if the body is no page of a list."""
        intake.count(body)
        entries, self.resource_version, token = self.reader.page(body)
        self.entries += entries
        return token


class Feed:
    """Passes all objects of a scope, and every change, to a sink until cancelled. Retries failures with a backoff.

    `scope` has one namespace at most. If the server does not serve the kind, or RBAC denies the read, the state is
    `refused`. All feeds of an unreachable server share `server`, and retry as soon as the server answers another feed.

    A collection is streamed (KEP-3157, on by default since Kubernetes 1.34) or, if the server refuses, listed in pages.
    Watches resume at the last resourceVersion. The feed relists when that version has expired, and every
    `relist_seconds`, shortened at random by up to half. The regular relist is needed after a restore of etcd: a watch
    from a resourceVersion that lies in the future waits silently (measured).

    A single object, by name and namespace, needs only `get` and `watch` on that name (a Role with `resourceNames`).
    Each round opens a watch with the field selector `metadata.name=<name>` and no resourceVersion, then reads the
    object. So the feed misses no change between the two, notices an absent object, and has no version that can expire.
    Events from before the read have a lower resourceVersion, and are dropped. With a field selector, the feed lists a
    collection instead, because only the API server can evaluate the selector.
    """

    def __init__(
        self,
        client: Client,
        reader: EntryReader,
        sink: Sink,
        *,
        server: ServerState,
        scope: CacheScope = CacheScope(),  # noqa: B008 - frozen
        relist_seconds: float = 3600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.state: FeedState = "connecting"
        self.error = ""
        """Last failure; empty after a success."""
        self.refusal: Refusal | None = None
        """Reason of the refusal, if the server refuses the kind."""
        self.restarts: Final[Counter[str]] = Counter()
        """Number of watches that ended, by reason: closed, expired, refused, unreachable, failed."""
        self._client = client
        self._reader = reader
        self._resource = reader.resource
        self._sink = sink
        self._server = server
        self._scope = scope
        self._namespace = next(iter(scope.namespaces), None)
        self._relist_seconds = relist_seconds
        self._watch_seconds = watch_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._backoff = backoff or Backoff(initial_seconds=0.5, maximum_seconds=30.0, factor=1.5)
        self._resource_version: str | None = None
        self._relist_at = 0.0
        self._relists_requested = 0
        """Number of calls of `relist`."""
        self._relists_done = 0
        """Number of calls of `relist` that the latest list answers."""
        self._open_watch: asyncio.Timeout | None = None
        """Ends the watch that is open, if it is rescheduled."""
        self._read_version = 0
        """resourceVersion of a single object when it was read; 0 for collections."""
        self._expired = False
        """Whether a resourceVersion has expired since the last steady watch."""
        self._in_outage = False
        """Whether the last attempts could not reach the server."""
        self._hurried = False
        """Whether the last wait ended early, because the server answered another feed. The next wait takes its full
        time, so that a server which answers now and then does not cause a busy loop."""
        self._failing_since = 0.0
        """Time of the first failure since the last steady watch."""
        self._down_since: float | None = None
        """Time of the first failure since the last working watch."""
        self._warned = ""
        """Exception name of the last warning, which is not logged again at that level."""

    @override
    def __str__(self) -> str:
        return f"{self._resource.plural} {self._scope}".rstrip()

    @property
    def down_seconds(self) -> float:
        """Seconds since the watch failed and was not open again; 0 while it is open, and before the first attempt."""
        return 0.0 if self._down_since is None else asyncio.get_running_loop().time() - self._down_since

    @property
    def version(self) -> int:
        """resourceVersion up to which the sink has every change; 0 before a list, and if the version is unknown."""
        return version_of(self._resource_version or "")

    @property
    def _needs_relist(self) -> bool:
        return self._relists_done < self._relists_requested

    def relist(self) -> None:
        """List all objects again as soon as possible, even if the watch works or a list is in progress."""
        self._relists_requested += 1
        if self._open_watch is not None:
            self._open_watch.reschedule(asyncio.get_running_loop().time())

    def reset(self) -> None:
        """Forget the state, so that the next `run` begins with a new list."""
        self.state, self.error, self.refusal = "connecting", "", None
        self._down_since = None
        self._resource_version, self._hurried, self._warned = None, False, ""
        self._expired = self._in_outage = False
        self._backoff.reset()

    async def run(self) -> NoReturn:
        """List and watch until cancelled."""
        try:
            await self._retry()
        finally:
            self._server.forget(self)

    async def _retry(self) -> NoReturn:
        while True:
            try:
                await self._follow()
                self.restarts["closed"] += 1
            except _RelistRequested:
                self.restarts["closed"] += 1
            except Expired as error:
                self._resource_version = None
                self.restarts["expired"] += 1
                # A single expired version is normal, most of all after an outage. Repeated ones need a backoff.
                if self._expired:
                    await self._pause(error)
                self._expired = True
            except ProviderError as error:
                if not self._can_resume(error):
                    self._resource_version = None
                self.restarts["refused" if isinstance(error, ApiError) else "unreachable"] += 1
                await self._pause(error)
            except Exception as error:
                log.exception("failed to watch %s: unexpected error", self)
                self._resource_version = None
                self.restarts["failed"] += 1
                await self._pause(error)

    def _can_resume(self, error: ProviderError) -> bool:
        """Tell whether the next watch can resume at the same resourceVersion after an error."""
        if isinstance(error, (Unauthorized, Forbidden, ServerError)):
            return self._backoff.failures < _PATIENCE
        return isinstance(error, TooManyRequests) or not isinstance(error, (ApiError, AnswerTooLarge))

    @contextlib.contextmanager
    def _steady(self, seconds: float) -> Iterator[None]:
        """Reset the backoff once the watch has been open for some seconds.

        Without this delay, a server that closes each watch at once would cause a busy loop.
        """
        self.state, self.error, self.refusal = "ready", "", None
        self._down_since = None
        self._server.observe(self, answers=True)
        self._server.answered()
        loop = asyncio.get_running_loop()
        steady_seconds, began = min(_STEADY_SECONDS, seconds / 2), loop.time()
        timer = loop.call_later(steady_seconds, self._mark_steady)
        try:
            yield
        finally:
            timer.cancel()
        if loop.time() - began < steady_seconds:
            raise Unreachable(f"the watch of {self} ended as soon as it began", kind="protocol")

    def _mark_steady(self) -> None:
        self._backoff.reset()
        self._hurried = self._expired = self._in_outage = False
        if self._warned:
            log.info("watching %s again", self)
            self._warned = ""

    async def _pause(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__
        self.refusal = refusal_of(error)
        if self._down_since is None:
            self._down_since = asyncio.get_running_loop().time()
        self._server.observe(self, answers=not _is_of_server(error))
        unreachable = isinstance(error, Unreachable) and _is_of_server(error)
        if self._in_outage and not unreachable:
            # The server answers again, so the long delays of the outage do not apply to it.
            self._backoff.reset()
        delay = self._backoff.next_delay()
        self._in_outage = unreachable and self._backoff.failures >= _PATIENCE
        retry_after = error.retry_after_seconds if isinstance(error, TooManyRequests) else None
        delay = max(delay, min(retry_after or 0.0, 60.0))
        self._log(type(error).__name__, delay)
        if self.refusal is not None:
            self._server.answered()
            if self.state != "refused":
                self.state = "refused"
                self._sink.refused()
        else:
            self.state = "unreachable"
        if _is_of_server(error) and not self._hurried:
            self._hurried = await self._server.wait(delay)
        else:
            self._hurried = False
            await asyncio.sleep(delay)

    def _log(self, failure: str, delay: float) -> None:
        """Log a failure: the first as info, a repeated one once as a warning. A single failure is normal.

        A new kind gives 404 until the API server serves its CustomResourceDefinition, which is normal for some seconds.
        """
        level, now = logging.INFO, asyncio.get_running_loop().time()
        if self._backoff.failures == 1:
            self._failing_since = now
        elif failure == NotFound.__name__ and now - self._failing_since < _NEW_KIND_SECONDS:
            level = logging.DEBUG
        else:
            level = logging.DEBUG if failure == self._warned else logging.WARNING
            self._warned = failure
        log.log(level, "failed to watch %s: %s; retrying in %.1f s", self, self.error, delay)

    async def _follow(self) -> None:
        name = self._scope.name
        if name is not None and self._scope.field_selector is None and not self._spans_namespaces:
            await self._follow_object(name)
            return
        now = asyncio.get_running_loop().time()
        if self._resource_version is None or now >= self._relist_at or self._needs_relist:
            if not self._server.refuses_streams and self._backoff.failures < _PATIENCE and await self._stream():
                return
            self._sink.begin()
            requested = self._relists_requested
            listing = await self._client.collect(
                lambda: _Listing(self._reader),
                self._resource,
                namespace=self._namespace,
                label_selector=self._scope.label_selector,
                field_selector=self._field_selector,
            )
            await self._replace(listing.entries, listing.resource_version, requested=requested)
        # The watch must end when the next relist is due.
        left = max(1.0, self._relist_at - asyncio.get_running_loop().time())
        seconds = min(self._watch_seconds * random.uniform(0.8, 1.0), left)  # noqa: S311
        async with self._watch(seconds=seconds, resource_version=self._resource_version) as watch:
            await watch.open()
            with self._steady(seconds):
                await self._consume(watch)

    async def _follow_object(self, name: str) -> None:
        seconds = min(self._watch_seconds, self._relist_seconds) * random.uniform(0.8, 1.0)  # noqa: S311
        async with self._watch(seconds=seconds) as watch:
            await watch.open()
            self._sink.begin()
            requested = self._relists_requested
            try:
                existing = await self._client.get(self._resource, name, namespace=self._namespace)
            except NotFound:
                entries: list[Entry] = []
            else:
                entries = [self._reader.encode(existing)]
            self._read_version = max((entry.version for entry in entries), default=0)
            # GET takes no label selector, so it is applied here.
            matches = parse_label_selector(self._scope.label_selector or "")
            version = entries[0].resource_version if entries else ""
            await self._sink.replace([entry for entry in entries if matches(entry.labels)], resource_version=version)
            self._relists_done = requested
            with self._steady(seconds):
                await self._consume(watch)

    async def _stream(self) -> bool:
        """Stream all objects from the server, then watch. Returns False if the server does not support streaming."""
        server = self._client.config.server
        seconds = min(self._watch_seconds * random.uniform(0.8, 1.0), self._relist_seconds)  # noqa: S311
        self._sink.begin()
        requested = self._relists_requested
        async with self._watch(seconds=seconds, initial_events=True) as watch:
            try:
                await watch.open()
            except ApiError as error:
                if error.status not in _REFUSALS:
                    raise
                log.info("listing %s of %s in pages: the server refuses to stream them: %s", self, server, error)
                self._server.refuses_streams = True
                return False
            lines = await self._read_initial(watch, requested=requested)
            if lines is None:
                log.info("listing %s of %s in pages: the stream has no end of the initial objects", self, server)
                self._server.refuses_streams = True
                return False
            with self._steady(seconds):
                await self._handle(lines)
                await self._consume(watch)
        return True

    async def _read_initial(self, watch: Watch, *, requested: int) -> list[bytes] | None:
        """Read the initial objects. Returns the lines after them, or None if their end bookmark never comes."""
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
                                await self._replace(
                                    [*present.values()], change.entry.resource_version, requested=requested
                                )
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

    async def _replace(self, entries: list[Entry], resource_version: str, *, requested: int) -> None:
        """Replace all objects by a list. `requested` is the number of calls of `relist` before the list began."""
        relist_seconds = self._relist_seconds * random.uniform(0.5, 1.0)  # noqa: S311
        self._relist_at = asyncio.get_running_loop().time() + relist_seconds
        self._relists_done = requested
        await self._sink.replace(entries, resource_version=resource_version)
        self._resource_version = resource_version

    @property
    def _spans_namespaces(self) -> bool:
        """Whether objects of the same name can exist in several namespaces."""
        return self._resource.namespaced and self._namespace is None

    @property
    def _field_selector(self) -> str | None:
        name = f"metadata.name={self._scope.name}" if self._scope.name is not None else None
        return ",".join(filter(None, (name, self._scope.field_selector))) or None

    def _watch(self, *, seconds: float, resource_version: str | None = None, initial_events: bool = False) -> Watch:
        return self._client.watch(
            self._resource,
            resource_version=resource_version,
            namespace=self._namespace,
            label_selector=self._scope.label_selector,
            field_selector=self._field_selector,
            timeout_seconds=seconds,
            idle_timeout_seconds=self._idle_timeout_seconds,
            metadata_only=self._reader.metadata_only,
            initial_events=initial_events,
        )

    async def _consume(self, watch: Watch) -> None:
        """Handle the events of a watch until its end. Raises _RelistRequested if `relist` is called before."""
        try:
            async with asyncio.timeout(None) as self._open_watch:
                if self._needs_relist:
                    raise _RelistRequested
                while lines := await watch.read():
                    await self._handle(lines)
        except TimeoutError:
            if self._open_watch is not None and self._open_watch.expired():
                raise _RelistRequested from None
            raise
        finally:
            self._open_watch = None

    async def _handle(self, lines: list[bytes]) -> None:
        for start in range(0, len(lines), _SLICE):
            if start:
                await asyncio.sleep(0)
            changes: list[Change] = []
            try:
                changes.extend(map(self._reader.change, lines[start : start + _SLICE]))
            finally:
                # Apply the changes before a malformed line too.
                self._apply(changes)

    def _apply(self, changes: list[Change]) -> None:
        events = [change for change in changes if change.type != "BOOKMARK"]
        if self._read_version:
            # The watch of a single object repeats events from before the read.
            events = [change for change in events if not 0 < change.entry.version < self._read_version]
        if changes:
            self._resource_version = changes[-1].entry.resource_version or self._resource_version
            self._sink.apply(events, resource_version=self._resource_version or "")


def refusal_of(error: Exception) -> Refusal | None:
    """Return the refusal that an error means, if any. A list or watch gets 404 if the server has no such kind."""
    if isinstance(error, NotServed):
        return Refusal("NotServed", str(error))
    if isinstance(error, NotFound):
        return Refusal("NotServed", error.message)
    return Refusal("Forbidden", error.message) if isinstance(error, Forbidden) else None


def _is_of_server(error: Exception) -> bool:
    """Tell whether an error concerns the whole server, so that it ends for all feeds at once."""
    if isinstance(error, Unreachable):
        return error.kind != "protocol"
    return isinstance(error, (ServerError, Unauthorized))
