"""Transport that answers the requests of a client in the same process, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

import aiohttp
import orjson
from multidict import CIMultiDict
from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.connections import Upgrade
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.errors import ApiError, ProviderError, Unreachable, api_error
from kplane.provider.testing.answers import answered
from kplane.provider.testing.faults import Faults
from kplane.provider.testing.requests import Asked, Kinds, asked_of, matcher
from kplane.provider.testing.store import Change, Object, Store

__all__ = ["FakeTransport"]

_BOOKMARK_SECONDS: Final = 60
"""Interval at which a kube-apiserver sends bookmarks in a quiet watch."""


class _Content:
    """The part of aiohttp.StreamReader that a client uses: chunks of an answer, until its end or failure."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ended = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def send(self, body: Object) -> None:
        self._parts.append(orjson.dumps(body) + b"\n")
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._changed.set()

    async def readany(self) -> bytes:
        while not (self._parts or self._ended or self._error):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        parts, self._parts = self._parts, []
        return b"".join(parts)

    async def iter_any(self) -> AsyncIterator[bytes]:
        while part := await self.readany():
            yield part


class _Answer:
    """The part of aiohttp.ClientResponse that a client uses."""

    def __init__(self, status: int = 200, body: Object | None = None) -> None:
        self.status: Final = status
        self.reason: Final = ""
        self.headers: Final[CIMultiDict[str]] = CIMultiDict()
        self.content_length: Final = None
        self.content: Final = _Content()
        if body is not None:
            self.content.send(body)
            self.content.end()


class FakeTransport(Transport):
    """Transport that executes requests on a `Store`."""

    def __init__(self, config: ClusterConfig, *, store: Store, kinds: Kinds, faults: Faults) -> None:
        super().__init__(config, connect_timeout_seconds=1, user_agent="test")
        self._store = store
        self._kinds = kinds
        self._faults = faults
        self._watches: set[_Content] = set()

    @override
    @contextlib.asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        self._require_open()
        # Let other tasks run, as during a request to a real server.
        await asyncio.sleep(0)
        if request.before_sending is not None:
            try:
                _ = request.before_sending()
            except Exception as error:
                raise Unreachable(f"{request} was not sent: {error}", kind="connect") from error
        if self._faults.outage is not None:
            raise self._faults.outage
        with contextlib.ExitStack() as stack:
            try:
                answer = self._answer(request, stack)
            except ApiError as error:
                answer = _Answer(error.status, _status(error))
                if error.retry_after_seconds is not None:
                    answer.headers["Retry-After"] = f"{error.retry_after_seconds:g}"
            yield cast("aiohttp.ClientResponse", answer)

    @override
    def websocket(self, request: HttpRequest) -> AbstractAsyncContextManager[Upgrade]:
        raise ProviderError(f"failed to {request}: a FakeCluster runs no pods; test it with a real cluster (`k8s`)")

    @override
    async def aclose(self) -> None:
        self.end_watches(Unreachable(f"the client of {self.config.server} was closed", kind="connect"))
        await super().aclose()

    def end_watches(self, error: Unreachable) -> None:
        """End every watch with an error."""
        for content in self._watches:
            content.set_exception(error)

    def _answer(self, request: HttpRequest, stack: contextlib.ExitStack) -> _Answer:
        body: Any = orjson.loads(request.body) if request.body else None
        asked = asked_of(request, self._kinds)
        if not isinstance(asked, Asked):
            return _Answer(body=asked)
        warnings = [
            f"299 - {orjson.dumps(text).decode()}" for text in self._faults.warnings(asked.verb, asked.resource)
        ]
        answer = self._execute(request, asked, body, stack)
        answer.headers.extend(("Warning", text) for text in warnings)
        return answer

    def _execute(self, request: HttpRequest, asked: Asked, body: Any, stack: contextlib.ExitStack) -> _Answer:
        fault = self._faults.next(asked.verb, asked.resource)
        if fault is not None:
            if fault.takes_effect:
                # The answer is lost, also a refusal.
                with contextlib.suppress(ApiError):
                    _ = answered(self._store, request, asked, body)
            raise fault.error
        if asked.verb == "watch":
            return self._watch(asked, stack)
        return _Answer(*answered(self._store, request, asked, body))

    def _watch(self, asked: Asked, stack: contextlib.ExitStack) -> _Answer:
        answer, store, matches = _Answer(), self._store, matcher(asked)
        content, version = answer.content, asked.query.get("resourceVersion", "")
        initial = asked.query.get("sendInitialEvents") == "true"
        if version and not version.isdecimal():
            raise api_error(400, "BadRequest", f"resourceVersion: Invalid value: {version!r}")

        def follow(change: Change) -> None:
            if change.resource == asked.resource and (event := change.seen_by(matches)):
                content.send({"type": event[0], "object": asked.shown(event[1])})

        if initial or version in {"", "0"}:
            for obj in filter(matches, store.of(asked.resource, asked.namespace)):
                content.send({"type": "ADDED", "object": asked.shown(obj)})
        else:
            for change in store.history[int(version) :]:
                follow(change)
        if initial:
            content.send(_bookmark(asked, store.version, {"k8s.io/initial-events-end": "true"}))
        store.followers.add(follow)
        _ = stack.callback(store.followers.discard, follow)
        self._watches.add(content)
        _ = stack.callback(self._watches.discard, content)
        loop, seconds = asyncio.get_running_loop(), float(asked.query.get("timeoutSeconds", "300"))
        timers = [loop.call_later(seconds, content.end)]
        if asked.query.get("allowWatchBookmarks") == "true":
            timers += [
                loop.call_later(after, lambda: content.send(_bookmark(asked, store.version, {})))
                for after in range(_BOOKMARK_SECONDS, int(seconds), _BOOKMARK_SECONDS)
            ]
        for timer in timers:
            _ = stack.callback(timer.cancel)
        return answer


def _status(error: ApiError) -> Object:
    content = {"code": error.status, "reason": error.reason, "message": error.message, "details": dict(error.details)}
    return {"kind": "Status", **content}


def _bookmark(asked: Asked, version: int, annotations: dict[str, str]) -> Object:
    metadata = {"resourceVersion": str(version), "annotations": annotations}
    resource = asked.resource
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return {"type": "BOOKMARK", "object": obj}
