"""Requests to an API server and their answers: paths, deadlines, bodies, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.agent import user_agent as make_user_agent
from kplane.provider.client.body import encode, query_of
from kplane.provider.client.calls import Calls
from kplane.provider.client.connections import Connections
from kplane.provider.client.keys import Named, locate
from kplane.provider.client.kinds import BUILT_IN, discover, parse_kind
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.listing import JSON
from kplane.provider.client.liveness import PROBE_SECONDS, Liveness
from kplane.provider.client.resources import Resource
from kplane.provider.client.server_warnings import ApiWarning, Headers, WarningHandler, warnings_of
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.typed import Kind, typed_of
from kplane.provider.client.wire import decode, read_object
from kplane.provider.client.written import WriteObserver, Written, read_write
from kplane.provider.errors import ProviderError

__all__ = ["FieldValidation", "Object", "Params", "Rest"]

_TIMEOUT_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 5.0

Object = dict[str, Any]
Params = Mapping[str, str | int | bool | None]
FieldValidation = Literal["Strict", "Warn", "Ignore"]


class Rest:
    """Sends requests to an API server, and decodes the answers. `Client` documents the arguments."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timeout_seconds: float | None = None,
        connect_timeout_seconds: float | None = None,
        field_manager: str | None = None,
        user_agent: str | None = None,
        field_validation: FieldValidation = "Warn",
        cluster: str = "",
        on_warning: WarningHandler | None = None,
        keeps_worker: bool = False,
        connections: Connections | None = None,
        transport: Transport | None = None,
        before_write: Callable[[], float | None] | None = None,
        limits: AnswerLimits | None = None,
    ) -> None:
        """Create a client. The caller closes `connections`, and a `transport`, which brings its own credentials."""
        calls = config.calls
        timeout_seconds = timeout_seconds or calls.timeout_seconds or _TIMEOUT_SECONDS
        limits = AnswerLimits().within(calls) if limits is None else limits
        self._owns_transport = transport is None
        self._transport = transport or Transport(
            config,
            connect_timeout_seconds=connect_timeout_seconds or calls.connect_timeout_seconds or _CONNECT_SECONDS,
            user_agent=make_user_agent(field_manager) if user_agent is None else user_agent,
            connections=connections,
        )
        self._calls = Calls(
            self._transport,
            timeout_seconds=timeout_seconds,
            keeps_worker=keeps_worker,
            before_write=before_write,
            limits=limits,
            answered=self._answered,
        )
        self._timeout_seconds = timeout_seconds
        self._field_manager = field_manager
        self._field_validation: FieldValidation = field_validation
        self._liveness = Liveness(lambda: self.probe("/version", timeout_seconds=PROBE_SECONDS))
        self._cluster = cluster
        self._on_warning = on_warning
        self._limits = limits
        self._discovered: dict[str, Resource] = {}
        self._write_observers: tuple[WriteObserver, ...] = ()

    @override
    def __repr__(self) -> str:
        return f"Client({self.config.server!r})"

    @property
    def config(self) -> ClusterConfig:
        """Configuration for the next request."""
        return self._transport.config

    @property
    def transport(self) -> Transport:
        """Transport that sends the requests with the credentials."""
        return self._transport

    @property
    def field_manager(self) -> str | None:
        """Name under which the API server records the written fields; a call can override the name."""
        return self._field_manager

    @property
    def field_validation(self) -> FieldValidation:
        """Treatment of unknown and duplicate fields in writes by the API server."""
        return self._field_validation

    @property
    def limits(self) -> AnswerLimits:
        """Limits of the answers."""
        return self._limits

    @property
    def timeout_seconds(self) -> float:
        """Default deadline of a call, in seconds."""
        return self._timeout_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection, including open watches. Connections of other clients stay open."""
        if self._owns_transport:
            await self._transport.aclose()

    async def update(self, config: ClusterConfig) -> None:
        """Use renewed credentials for the same cluster; open watches continue.

        Raises ProviderError if `config` is another cluster or identity.
        """
        if not config.continues(self.config):
            raise ProviderError(f"the client of {self.config.server} cannot be turned into one of another cluster")
        if self._owns_transport:
            await self._transport.update(config)

    def observe_writes(self, observer: WriteObserver) -> None:
        """Call `observer` with the object that each write returns; a `Cache` observes the client of its cluster.

        `delete_all`, `request`, dry runs and answers without an object do not call the observer.
        """
        self._write_observers += (observer,)

    def ignore_writes(self, observer: WriteObserver) -> None:
        """Remove an observer of `observe_writes`."""
        self._write_observers = tuple(other for other in self._write_observers if other != observer)

    def note_write(self, written: Written | None) -> None:
        """Notify the observers of a write of this client, or of another client that shares its objects."""
        if written is not None:
            for observe in self._write_observers:
                observe(written)

    async def resource(self, kind: Kind[Any]) -> Resource:
        """Return a kind by its name, such as `"apps/v1/Deployment"`, or its class; a Resource is returned as it is.

        Built-in kinds need no request. Other kinds, such as `"example.com/v1/Widget"`, are discovered once.
        Raises NotServed if the server does not serve the kind, and ProviderError for an invalid name.
        """
        resource = self.known_resource(kind)
        if resource is None:
            name = str(parse_kind(kind))
            resource = self._discovered[name] = await discover(self, name)
        return resource

    def known_resource(self, kind: Kind[Any]) -> Resource | None:
        """Return the result of `resource` if it needs no request, else None."""
        if isinstance(kind, Resource):
            return kind
        if (typed := typed_of(kind)) is not None:
            return typed.resource or self._discovered.get(typed.name)
        return BUILT_IN.get(str(kind)) or self._discovered.get(str(kind))

    async def probe(self, path: str = "/readyz", *, timeout_seconds: float | None = None) -> None:
        """Check the health of the API server. Raises Unreachable or ApiError if the server is not healthy."""
        request = self._adapted(HttpRequest("GET", path, accept="*/*"))
        await self._calls.drop(request, timeout_seconds=timeout_seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        timeout_seconds: float | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Send any request and return the decoded answer, such as `request("GET", "/version")`.

        `path` starts with a slash, and the caller quotes it.
        """
        return await self._request(
            method,
            path,
            body=body,
            params=params,
            timeout_seconds=timeout_seconds,
            content_type=content_type,
            accept=accept,
        )

    async def text(self, path: str, *, timeout_seconds: float | None = None) -> str:
        """Return the text at a path without objects, such as `/metrics`. Bytes that are no UTF-8 are replaced."""
        with self._limits.intake(server=self.config.server) as intake:
            request = self._adapted(HttpRequest("GET", path, accept="text/plain, */*"))
            body = await self._calls.body(request, intake=intake, timeout_seconds=timeout_seconds)
            return body.decode(errors="replace")

    async def _locate(
        self, kind: Kind[Any], key: str | Named, namespace: str | None
    ) -> tuple[Resource, str, str | None]:
        return (await self.resource(kind), *locate(key, namespace=namespace))

    async def _object(
        self,
        method: str,
        path: str,
        resource: Resource,
        *,
        key: str,
        body: Any = None,
        params: Params | None = None,
        content_type: str = JSON,
    ) -> Object:
        answer = await self._request(
            method, path, body=body, params=params, content_type=content_type, kind=resource.name, key=key
        )
        obj = read_object(answer, server=self.config.server, api_version=resource.api_version, kind=resource.kind)
        if method not in {"GET", "DELETE"}:
            self.note_write(read_write(resource, obj))
        return obj

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        timeout_seconds: float | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        kind: str = "",
        key: str = "",
    ) -> Any:
        content, query = None if body is None else encode(body), query_of(params or {})
        request = self._adapted(HttpRequest(method, path, query, content, content_type, accept, kind=kind, key=key))
        with self._limits.intake(server=self.config.server) as intake:
            answer = await self._calls.body(request, intake=intake, timeout_seconds=timeout_seconds)
            intake.parse(answer)
            return decode(answer, server=self.config.server)

    def _answered(self, request: HttpRequest, headers: Headers) -> None:
        """Record a sign of life, and log the warnings of an answer and pass them to `on_warning`."""
        self._liveness.heard()
        for text in warnings_of(headers):
            warning = ApiWarning(text, request.kind or request.path, request.key, self._cluster or self.config.server)
            self._transport.warnings.log(warning)
            if self._on_warning is not None:
                self._on_warning(warning)

    def _path(
        self,
        resource: Resource,
        name: str | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        write: bool = False,
    ) -> str:
        """Return the path of an object or a collection. Subclasses may refuse a path by `write`."""
        del write
        return resource.path(name, namespace=namespace, subresource=subresource)

    def _adapted(self, request: HttpRequest) -> HttpRequest:
        """Return the request to send instead. Clients with a restricted view of the server override this method."""
        return request
