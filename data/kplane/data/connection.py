"""Persistent gRPC connection to etcd, replaced when its credentials are renewed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import grpc
import grpc.aio

from kplane.data.credentials import Credentials, HeldCredentials, Stamp
from kplane.data.errors import (
    AlreadyExists,
    Compacted,
    DataError,
    EtcdError,
    LearnerBehind,
    NoRoom,
    NotFound,
    PermissionDenied,
    TimedOut,
    TooLarge,
    Unreachable,
)
from kplane.data.rpc import Method, RequestT, ResponseT

__all__ = ["Connection"]

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    # A subchannel with former credentials must not be shared with a later channel.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # Reconnect soon after an outage of etcd. The default backoff grows up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_OLD_AUTH_REVISION: Final = "revision of auth store is old"
_OLD_AUTH_ATTEMPTS: Final = 5
_LEFT_SECONDS: Final = 30.0
"""Grace period for calls on a replaced connection, in seconds."""

_BY_MESSAGE: Final[tuple[tuple[str, type[EtcdError]], ...]] = (
    ("user name not found", NotFound),
    ("role name not found", NotFound),
    ("role is not granted to the user", NotFound),
    ("permission is not granted to the role", NotFound),
    ("member not found", NotFound),
    ("learner member which is in sync", LearnerBehind),
    ("already exists", AlreadyExists),
    ("required revision has been compacted", Compacted),
    # etcd's answer to a certificate whose user was deleted.
    ("user name is empty", PermissionDenied),
    ("message larger than max", TooLarge),
    ("request is too large", TooLarge),
    ("database space exceeded", NoRoom),
)
_BY_CODE: Final[dict[grpc.StatusCode, type[EtcdError]]] = {
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
}


@dataclass(slots=True)
class _Open:
    channel: grpc.aio.Channel
    credentials: Credentials | HeldCredentials
    stamp: Stamp
    methods: dict[str, grpc.aio.UnaryUnaryMultiCallable[Any, Any]] = field(default_factory=dict)


class _Streaming(Protocol):
    """A call with a stream of answers."""

    async def read(self) -> object: ...

    def cancel(self) -> bool: ...


class Connection:
    """A connection that belongs to an event loop. The first call opens the connection; gRPC reconnects after a loss."""

    def __init__(self, endpoint: str, *, credentials: Credentials | HeldCredentials, receive_at_most: int = -1) -> None:
        """Take the URL of an etcd. Raises DataError if the URL is not `https://<host>[:<port>]`.

        An answer of more than `receive_at_most` bytes raises TooLarge; -1 means no limit.
        """
        url = urlsplit(endpoint)
        if url.scheme != "https" or not url.hostname or url.path.strip("/"):
            raise DataError(f"{endpoint!r} is not the URL of an etcd; it must be https://<host>:<port>")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        self.endpoint: Final = endpoint
        self._target = f"{host}:{url.port or 443}"
        self._credentials = credentials
        self._options = (*_OPTIONS, ("grpc.max_receive_message_length", receive_at_most))
        self._open: _Open | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def use(self, credentials: Credentials | HeldCredentials) -> None:
        """Use other credentials, from the next call on."""
        self._credentials = credentials

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_seconds: float
    ) -> ResponseT:
        """Make a call with a deadline, and return etcd's answer.

        Raises DataError: CredentialsUnusable, Unreachable, TimedOut, or the subclass of EtcdError for etcd's message.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._call(method, request, timeout_seconds=timeout_seconds)
        except TimeoutError:
            raise TimedOut(self._failed(method, f"no answer within {timeout_seconds:g} s")) from None

    async def _call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, timeout_seconds: float
    ) -> ResponseT:
        attempt = 1
        while True:
            opened = self._opened()
            callable_ = opened.methods.get(method.path)
            if callable_ is None:
                callable_ = opened.methods[method.path] = opened.channel.unary_unary(
                    method.path,
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                )
            try:
                answer = await callable_(request, timeout=timeout_seconds)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                # gRPC cancels the calls of a closed connection. This task itself was not cancelled.
                raise Unreachable(self._failed(method, "the connection was closed")) from None
            except grpc.aio.AioRpcError as error:
                # A user or role changed during the call: etcd then refuses a read that it had already authorized.
                if _OLD_AUTH_REVISION in (error.details() or "") and attempt < _OLD_AUTH_ATTEMPTS:
                    attempt += 1
                    continue
                raise self._error(method, error) from error
            if not isinstance(answer, method.response):
                raise DataError(self._failed(method, "unexpected answer"))
            return answer

    async def stream(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, idle_seconds: float
    ) -> AsyncIterator[ResponseT]:
        """Make a call with a stream of answers, and yield each answer; `idle_seconds` limits each wait.

        Renewed certificate files apply to later calls only. Raises DataError as `call` does.
        """
        call = self._opened().channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(request)
        stream = self._answers(method, call, first_seconds=idle_seconds, idle_seconds=idle_seconds)
        async with contextlib.aclosing(stream) as answers:
            async for answer in answers:
                yield answer

    async def subscribe(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, begin_seconds: float
    ) -> AsyncGenerator[ResponseT]:
        """Send a single request on a stream that stays open, and yield the answers.

        The first answer must arrive within `begin_seconds`. Later answers may take any time: keepalive pings detect a
        lost etcd. Raises DataError as `call` does, and Unreachable if etcd ends the stream.
        """

        async def once() -> AsyncIterator[RequestT]:
            yield request
            # The end of this iterator would close the stream.
            await ended.wait()

        ended = asyncio.Event()
        call = self._opened().channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(once())
        try:
            stream = self._answers(method, call, first_seconds=begin_seconds, idle_seconds=None)
            async with contextlib.aclosing(stream) as answers:
                async for answer in answers:
                    yield answer
        finally:
            ended.set()
        raise Unreachable(self._failed(method, "etcd ended the stream"))

    async def _answers(
        self,
        method: Method[RequestT, ResponseT],
        call: _Streaming,
        *,
        first_seconds: float,
        idle_seconds: float | None,
    ) -> AsyncGenerator[ResponseT]:
        wait: float | None = first_seconds
        try:
            while True:
                async with asyncio.timeout(wait):
                    answer = await call.read()
                if answer is grpc.aio.EOF:
                    return
                if not isinstance(answer, method.response):
                    raise DataError(self._failed(method, "unexpected answer"))
                yield answer
                wait = idle_seconds
        except TimeoutError:
            raise TimedOut(self._failed(method, f"no answer within {wait or 0.0:g} s")) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # As in `_call`: the connection was closed, and this task was not cancelled.
            raise Unreachable(self._failed(method, "the connection was closed")) from None
        except grpc.aio.AioRpcError as error:
            raise self._error(method, error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection. Calls in flight fail with an error. A later call opens a new connection."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.channel.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _opened(self) -> _Open:
        opened = self._open
        credentials = self._credentials
        if opened is not None and opened.credentials == credentials and opened.stamp == credentials.stamp():
            return opened
        pem = credentials.read()
        channel = grpc.aio.secure_channel(
            self._target,
            grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate),
            options=self._options,
        )
        self._open = _Open(channel, credentials, pem.stamp)
        if opened is not None:
            task = asyncio.create_task(opened.channel.close(_LEFT_SECONDS), name="close a replaced connection to etcd")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return self._open

    def _error(self, method: Method[RequestT, ResponseT], error: grpc.aio.AioRpcError) -> DataError:
        detail = error.details() or error.code().name
        message = self._failed(method, detail)
        for part, kind in _BY_MESSAGE:
            if part in detail:
                return kind(message)
        code = error.code()
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unreachable(message)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimedOut(message)
        return _BY_CODE.get(code, EtcdError)(message)

    def _failed(self, method: Method[RequestT, ResponseT], cause: str) -> str:
        return f"failed to call {method.path.rpartition('/')[2]} of etcd at {self.endpoint}: {cause}"
