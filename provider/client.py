"""A thin client for one API server: plain dicts in and out, a deadline on every call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import orjson
from typing_extensions import override

from provider.connections import Connections
from provider.errors import Expired, ProviderError, TooManyRequests, Unreachable
from provider.kubeconfig import ClusterConfig
from provider.resources import Resource
from provider.transport import Request, Transport
from provider.waiting import unanswered
from provider.watch import Watch
from provider.wire import decode, error_of, read_body, read_object, translated

__all__ = ["Client", "ObjectList"]

_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
# JSON is YAML, and the API server knows server-side apply under this name in every version.
_APPLY_PATCH: Final = "application/apply-patch+yaml"
_LIST_DEADLINES: Final = 10

Object = dict[str, Any]
Params = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The objects of a collection, all as of `resource_version`, without managedFields."""

    items: list[Object]
    resource_version: str


class Client:
    """Talks to the API server of a `ClusterConfig`; close it with `aclose()`, or use it as `async with`.

    `timeout_seconds` is the deadline of one call with all its retries, `connect_timeout_seconds` the one of making a
    connection. Every method raises ApiError when the server refuses, Unreachable when it gives no answer in time (or
    none that makes sense), KubeconfigError when the credentials cannot be used. 429 is retried within the deadline.

    A reconcile whose call stays unanswered leaves its worker to others (see `Controller`), unless `keeps_worker`: that
    is for the server that all reconciles work with, which more of them at once would only make slower.

    `before_write` is called before each request that may change something is sent; what it raises keeps it from being
    sent. So whoever may write only while a Lease is held cannot forget to look.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timeout_seconds: float = 30.0,
        connect_timeout_seconds: float = 5.0,
        field_manager: str = "kplane",
        keeps_worker: bool = False,
        connections: Connections | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        """`connections` are used in the place of own ones wherever the kubeconfig allows it, and outlive the client."""
        self._transport = Transport(config, connect_timeout_seconds=connect_timeout_seconds, connections=connections)
        self._timeout_seconds = timeout_seconds
        self._waiting: Callable[[], AbstractContextManager[None]] = nullcontext if keeps_worker else unanswered
        self._field_manager = field_manager
        self._before_write = before_write

    @override
    def __repr__(self) -> str:
        return f"Client({self.config.server!r})"

    @property
    def config(self) -> ClusterConfig:
        """What the client connects with."""
        return self._transport.config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection, also those of watches that are still open."""
        await self._transport.aclose()

    async def update(self, config: ClusterConfig) -> None:
        """Go on with renewed credentials for the same cluster; open watches are not disturbed.

        Raises ProviderError where `config` is another cluster or identity.
        """
        if not config.continues(self.config):
            raise ProviderError(f"the client of {self.config.server} cannot be turned into one of another cluster")
        await self._transport.update(config)

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """Read one object; raises NotFound."""
        return await self._object("GET", resource.path(name, namespace=namespace), resource)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = 500,
    ) -> ObjectList:
        """Read a whole collection in pages, all as of one resourceVersion; `namespace=None` is over all namespaces."""
        path = resource.path(namespace=namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        # A server that hands out pages without end must not hold the caller for ever.
        with translated(server=self.config.server, asked=f"list of {resource.plural}"):
            async with asyncio.timeout(_LIST_DEADLINES * self._timeout_seconds):
                try:
                    return await self._pages(path, resource, {**selectors, "limit": page_size})
                except Expired:
                    # The pages outlived their snapshot; one request cannot.
                    return await self._pages(path, resource, selectors)

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str | None,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
    ) -> Watch:
        """Follow a collection from a resourceVersion on; with None it begins with the present objects as ADDED.

        The server ends it after `timeout_seconds`; the client gives up after `idle_timeout_seconds` without as much as
        a bookmark (a server sends one about every minute).
        """
        query = _query(
            {
                "watch": True,
                "allowWatchBookmarks": True,
                "resourceVersion": resource_version,
                "labelSelector": label_selector,
                "fieldSelector": field_selector,
                "timeoutSeconds": max(1, round(timeout_seconds)),
            }
        )
        return Watch(
            self._transport,
            resource=resource,
            request=Request("GET", resource.path(namespace=namespace), query),
            open_timeout_seconds=self._timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
        )

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        """Create an object; raises AlreadyExists.

        The namespace is taken from the body where none is given; apiVersion and kind are filled in.
        """
        namespace = namespace if namespace is not None else _namespace(body)
        path = resource.path(namespace=namespace)
        params: Params = {"fieldManager": self._field_manager}
        return await self._object("POST", path, resource, body=_typed(resource, body), params=params)

    async def replace(
        self, resource: Resource, body: Object, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """Replace an object by `body`; raises Conflict where its resourceVersion is not the present one."""
        namespace = namespace if namespace is not None else _namespace(body)
        path = resource.path(_name(body), namespace=namespace, subresource=subresource)
        params: Params = {"fieldManager": self._field_manager}
        return await self._object("PUT", path, resource, body=_typed(resource, body), params=params)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Change an object by a JSON merge patch."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        params = {"fieldManager": self._field_manager}
        return await self._object("PATCH", path, resource, body=body, params=params, content_type=_MERGE_PATCH)

    async def json_patch(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Object],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Change an object by a JSON patch (RFC 6902); its `test` operations fail with Invalid."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        params = {"fieldManager": self._field_manager}
        return await self._object("PATCH", path, resource, body=operations, params=params, content_type=_JSON_PATCH)

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = True,
        field_manager: str | None = None,
    ) -> Object:
        """Server-side apply: create the object or make exactly these fields ours.

        apiVersion and kind are filled in; name and namespace are those of the body. Raises Conflict where another
        manager owns a field and `force` is off.
        """
        namespace = namespace if namespace is not None else _namespace(body)
        path = resource.path(_name(body), namespace=namespace, subresource=subresource)
        params: Params = {"fieldManager": field_manager or self._field_manager, "force": force}
        typed = _typed(resource, body)
        return await self._object("PATCH", path, resource, body=typed, params=params, content_type=_APPLY_PATCH)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        propagation: str | None = None,
    ) -> Object:
        """Delete one object; raises NotFound, and Conflict where it has another `uid`.

        `propagation` is Background, Foreground or Orphan. Returns the object if finalizers hold it, else a Status.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self._object("DELETE", resource.path(name, namespace=namespace), resource, body=options)

    async def probe(self, path: str = "/readyz") -> None:
        """Return when the API server says that it is healthy; raises Unreachable or ApiError otherwise."""
        await self._call(Request("GET", path, accept="*/*"), timeout_seconds=self._timeout_seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        timeout_seconds: float | None = None,
        content_type: str = _JSON,
    ) -> Any:
        """Send any request and return the parsed JSON answer, e.g. `request("GET", "/version")`.

        `path` begins with a slash and is quoted by the caller.
        """
        request = Request(method, path, _query(params or {}), None if body is None else _encode(body), content_type)
        deadline = timeout_seconds if timeout_seconds is not None else self._timeout_seconds
        return decode(await self._call(request, timeout_seconds=deadline), server=self.config.server)

    async def _object(
        self,
        method: str,
        path: str,
        resource: Resource,
        *,
        body: Any = None,
        params: Params | None = None,
        content_type: str = _JSON,
    ) -> Object:
        answer = await self.request(method, path, body=body, params=params, content_type=content_type)
        return read_object(answer, server=self.config.server, api_version=resource.api_version, kind=resource.kind)

    async def _pages(self, path: str, resource: Resource, params: Params) -> ObjectList:
        items: Any = []
        token: str | None = None
        while True:
            page = await self.request("GET", path, params={**params, "continue": token})
            metadata = page.get("metadata") if isinstance(page, dict) else None
            found = page.get("items") if isinstance(page, dict) else None
            if not isinstance(metadata, dict) or not isinstance(found, (list, type(None))):
                raise Unreachable(f"{self.config.server} answered with no list of {resource.plural}", kind="protocol")
            items += [
                read_object(item, server=self.config.server, api_version=resource.api_version, kind=resource.kind)
                for item in found or ()
            ]
            token = metadata.get("continue") or None
            if token is None:
                return ObjectList(items, str(metadata.get("resourceVersion", "")))

    async def _call(self, request: Request, *, timeout_seconds: float) -> bytes:
        with self._waiting(), translated(server=self.config.server, asked=str(request)):
            async with asyncio.timeout(timeout_seconds) as deadline:
                while True:
                    try:
                        return await self._once(request)
                    except TooManyRequests as error:
                        pause = (error.retry_after_seconds or 1.0) * random.uniform(1.0, 1.3)  # noqa: S311
                        left = (deadline.when() or 0.0) - asyncio.get_running_loop().time()
                        if pause >= left:
                            raise
                        await asyncio.sleep(pause)

    async def _once(self, request: Request) -> bytes:
        if self._before_write is not None and request.method != "GET":
            self._before_write()
        async with self._transport.exchange(request) as response:
            if not 200 <= response.status < 300:
                raise await error_of(response, server=self.config.server, asked=str(request))
            return await read_body(response, server=self.config.server)


def _typed(resource: Resource, body: Object) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _encode(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise ProviderError(f"the body cannot be sent as JSON: {error}") from error


def _query(params: Params) -> str:
    plain = {key: str(value).lower() if isinstance(value, bool) else value for key, value in params.items()}
    return urlencode({key: value for key, value in plain.items() if value is not None}, quote_via=quote)


def _name(body: Object) -> str:
    name = _metadata(body).get("name")
    if not isinstance(name, str):
        raise ProviderError("the object has no metadata.name")
    return name


def _namespace(body: Object) -> str | None:
    namespace = _metadata(body).get("namespace")
    return namespace if isinstance(namespace, str) else None


def _metadata(body: Object) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
