"""A thin client for one API server: plain dicts in and out, a deadline on every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.body import encode, name_of, namespace_of, query_of, typed
from kplane.provider.client.calls import Calls
from kplane.provider.client.connections import Connections
from kplane.provider.client.keys import Named, locate
from kplane.provider.client.kinds import BUILT_IN, discover
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.listing import JSON, METADATA, METADATA_LIST, Listing, ObjectList, Pages
from kplane.provider.client.pods import Pods
from kplane.provider.client.resources import Resource
from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.watch import Asked, Watch
from kplane.provider.client.wire import decode, read_object, translated
from kplane.provider.errors import Expired, NotFound, ProviderError

__all__ = ["Client", "ObjectList"]

_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
# JSON is YAML, and the API server knows server-side apply under this name in every version.
_APPLY_PATCH: Final = "application/apply-patch+yaml"
_LIST_DEADLINES: Final = 10

P = TypeVar("P", bound=Pages)
Object = dict[str, Any]
Params = Mapping[str, str | int | bool | None]


class Client:
    """Talks to the API server of a `ClusterConfig`, with plain dicts. Close it with `aclose()`, or use `async with`.

    A kind is a Resource or a name, such as `"apps/v1/Deployment"`; see `resource`. An object is named by its name, and
    `namespace` for namespaced kinds, or by something that has both, such as a `Request`.

    `timeout_seconds` bounds a call with its retries, `connect_timeout_seconds` the making of a connection. Each method
    raises ApiError if the server refuses, Unreachable if it gives no valid answer in time, and KubeconfigError if the
    credentials cannot be used. 429 is retried within the deadline.

    `limits` bound the answers; a larger one raises AnswerTooLarge, an Unreachable. The defaults allow 64 MiB, and lists
    of any length: set limits if you do not trust the server. A call needs memory for one answer, a list for all its
    pages, and concurrent calls for each of theirs, unless `limits.together` bounds the sum.

    A reconcile whose call stays unanswered leaves its worker to others (see `Controller`). `keeps_worker` turns this
    off, for the one server that all reconciles work with.

    `before_write` is called before each write, and again before its body is sent; if it raises, nothing is sent. So a
    process that may write only while it holds a Lease cannot forget to check. If it returns a number, the write may
    take that many seconds, and the server gets the same deadline.
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
        transport: Transport | None = None,
        before_write: Callable[[], float | None] | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Use `connections`, or the `transport` of another client with its credentials; they outlive this client."""
        self._owns_transport = transport is None
        self._transport = transport or Transport(
            config, connect_timeout_seconds=connect_timeout_seconds, connections=connections
        )
        self._calls = Calls(
            self._transport,
            timeout_seconds=timeout_seconds,
            keeps_worker=keeps_worker,
            before_write=before_write,
            limits=limits,
        )
        self._timeout_seconds = timeout_seconds
        self._field_manager = field_manager
        self._limits = limits
        self._discovered: dict[str, Resource] = {}

    @override
    def __repr__(self) -> str:
        return f"Client({self.config.server!r})"

    @property
    def config(self) -> ClusterConfig:
        """The configuration of the next request."""
        return self._transport.config

    @property
    def transport(self) -> Transport:
        """What sends the requests, with the credentials."""
        return self._transport

    @property
    def field_manager(self) -> str:
        """Under this name the API server notes which fields were written."""
        return self._field_manager

    @property
    def limits(self) -> AnswerLimits:
        """Bounds of the answers."""
        return self._limits

    @property
    def timeout_seconds(self) -> float:
        """The deadline of a call."""
        return self._timeout_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection, open watches included; connections of another client stay open."""
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

    async def resource(self, kind: Resource | str) -> Resource:
        """Return a kind by its name, such as `"apps/v1/Deployment"`; a Resource is returned as it is.

        Kubernetes' own kinds are known. For others, such as `"example.com/v1/Widget"`, the server is asked once. Raises
        NotServed if it does not serve the kind, and ProviderError if `kind` is no name of a kind.
        """
        found = self.known_resource(kind)
        if found is None:
            found = self._discovered[str(kind)] = await discover(self, str(kind))
        return found

    def known_resource(self, kind: Resource | str) -> Resource | None:
        """Return what `resource` would return without a question to the server; None if it would ask."""
        if isinstance(kind, Resource):
            return kind
        return BUILT_IN.get(kind) or self._discovered.get(kind)

    async def get(self, kind: Resource | str, key: str | Named, *, namespace: str | None = None) -> Object:
        """Read an object. Raises NotFound."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        return await self._object("GET", self._path(resource, name, namespace=namespace), resource)

    async def exists(self, kind: Resource | str, key: str | Named, *, namespace: str | None = None) -> bool:
        """Tell whether an object exists, without keeping the answer."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        request = self._adapted(HttpRequest("GET", self._path(resource, name, namespace=namespace), accept=METADATA))
        try:
            await self._calls.drop(request)
        except NotFound:
            return False
        return True

    async def list(
        self,
        kind: Resource | str,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = 500,
        max_items: int | None = None,
        metadata_only: bool = False,
    ) -> ObjectList:
        """Read a collection in pages, all of one resourceVersion; `namespace=None` means all namespaces.

        `page_size` counts objects. Raises AnswerTooLarge if there are more than `max_items`. With `metadata_only`,
        objects have only apiVersion, kind and metadata, and the server sends no more.
        """
        resource = await self.resource(kind)
        listing = await self.collect(
            lambda: Listing(resource, self.config.server, metadata_only=metadata_only, max_items=max_items),
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
        )
        return ObjectList(listing.items, listing.resource_version)

    async def collect(
        self,
        pages: Callable[[], P],
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = 500,
    ) -> P:
        """Read a collection as `list` does, into the object that `pages` makes."""
        path = self._path(resource, namespace=namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        # A server that hands out pages without end must not hold the caller for ever.
        with translated(server=self.config.server, asked=f"list of {resource.plural}"):
            async with asyncio.timeout(_LIST_DEADLINES * self._timeout_seconds):
                try:
                    return await self._pages(path, pages(), {**selectors, "limit": page_size})
                except Expired:
                    # The pages outlived their snapshot; one request cannot.
                    return await self._pages(path, pages(), selectors)

    def watch(
        self,
        kind: Resource | str,
        *,
        resource_version: str | None = None,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        metadata_only: bool = False,
        initial_events: bool = False,
    ) -> Watch:
        """Follow a collection from a resourceVersion; with None it starts with the present objects as ADDED.

        The server ends the watch after `timeout_seconds`. The client gives up after `idle_timeout_seconds` without even
        a bookmark, which a server sends about every minute. With `metadata_only`, the server sends only apiVersion,
        kind and metadata. With `initial_events`, a bookmark annotated `k8s.io/initial-events-end` ends the present
        objects (KEP-3157); a server without support raises Invalid. The watch raises as `resource` when it is opened.
        """
        query = query_of(
            {
                "watch": True,
                "allowWatchBookmarks": True,
                "sendInitialEvents": True if initial_events else None,
                "resourceVersionMatch": "NotOlderThan" if initial_events else None,
                "resourceVersion": resource_version,
                "labelSelector": label_selector,
                "fieldSelector": field_selector,
                "timeoutSeconds": max(1, round(timeout_seconds)),
            }
        )

        async def asking() -> Asked:
            resource = await self.resource(kind)
            path = self._path(resource, namespace=namespace)
            accept = METADATA if metadata_only else JSON
            return Asked(resource, self._adapted(HttpRequest("GET", path, query, accept=accept)))

        return Watch(
            self._transport,
            asking,
            open_timeout_seconds=self._timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            limits=self._limits,
        )

    async def create(self, kind: Resource | str, body: Object, *, namespace: str | None = None) -> Object:
        """Create an object. Fills in apiVersion and kind; the default namespace is the body's. Raises AlreadyExists."""
        resource = await self.resource(kind)
        namespace = namespace if namespace is not None else namespace_of(body)
        path = self._path(resource, namespace=namespace, write=True)
        params: Params = {"fieldManager": self._field_manager}
        return await self._object("POST", path, resource, body=typed(resource, body), params=params)

    async def replace(
        self, kind: Resource | str, body: Object, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """Replace an object. Raises Conflict if its resourceVersion is not the present one."""
        resource = await self.resource(kind)
        namespace = namespace if namespace is not None else namespace_of(body)
        path = self._path(resource, name_of(body), namespace=namespace, subresource=subresource, write=True)
        params: Params = {"fieldManager": self._field_manager}
        return await self._object("PUT", path, resource, body=typed(resource, body), params=params)

    async def patch(
        self,
        kind: Resource | str,
        key: str | Named,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Change an object with a JSON merge patch (RFC 7386). Raises NotFound, and Invalid for a bad result."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        path = self._path(resource, name, namespace=namespace, subresource=subresource, write=True)
        params = {"fieldManager": self._field_manager}
        return await self._object("PATCH", path, resource, body=body, params=params, content_type=_MERGE_PATCH)

    async def json_patch(
        self,
        kind: Resource | str,
        key: str | Named,
        operations: Sequence[Object],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Change an object with a JSON patch (RFC 6902). Raises as `patch`; a failed `test` is Invalid too."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        path = self._path(resource, name, namespace=namespace, subresource=subresource, write=True)
        params = {"fieldManager": self._field_manager}
        return await self._object("PATCH", path, resource, body=operations, params=params, content_type=_JSON_PATCH)

    async def apply(
        self,
        kind: Resource | str,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = True,
        field_manager: str | None = None,
    ) -> Object:
        """Apply an object server-side: create it, or own exactly these fields.

        Fills in apiVersion and kind; name and namespace are the body's. Raises Conflict if another manager owns a field
        and `force` is off.
        """
        resource = await self.resource(kind)
        namespace = namespace if namespace is not None else namespace_of(body)
        path = self._path(resource, name_of(body), namespace=namespace, subresource=subresource, write=True)
        params: Params = {"fieldManager": field_manager or self._field_manager, "force": force}
        body = typed(resource, body)
        return await self._object("PATCH", path, resource, body=body, params=params, content_type=_APPLY_PATCH)

    async def delete(
        self,
        kind: Resource | str,
        key: str | Named,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
    ) -> Object:
        """Delete an object. Raises NotFound, and Conflict if it has another `uid` or `resource_version`.

        `propagation` is Background, Foreground or Orphan. Returns the object if finalizers hold it, else a Status.
        """
        resource, name, namespace = await self._locate(kind, key, namespace)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        given = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in given.items() if value is not None}:
            options["preconditions"] = preconditions
        if propagation is not None:
            options["propagationPolicy"] = propagation
        return await self._object(
            "DELETE", self._path(resource, name, namespace=namespace, write=True), resource, body=options
        )

    async def delete_all(self, kind: Resource | str, *, namespace: str | None = None, label_selector: str) -> None:
        """Delete all objects with a label in one call; a namespaced kind needs a `namespace`.

        The answer, which repeats all objects, is not kept. Raises ProviderError if the selector is empty.
        """
        resource = await self.resource(kind)
        if not label_selector:
            raise ProviderError(f"without a label all {resource.plural} would be deleted")
        if resource.namespaced and namespace is None:
            raise ProviderError(f"{resource.plural} are namespaced: a namespace is needed")
        path, query = self._path(resource, namespace=namespace, write=True), query_of({"labelSelector": label_selector})
        await self._calls.drop(self._adapted(HttpRequest("DELETE", path, query, accept=METADATA_LIST)))

    async def probe(self, path: str = "/readyz") -> None:
        """Return if the API server is healthy; otherwise raises Unreachable or ApiError."""
        await self._calls.drop(self._adapted(HttpRequest("GET", path, accept="*/*")))

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
        sent = None if body is None else encode(body)
        request = self._adapted(HttpRequest(method, path, query_of(params or {}), sent, content_type, accept))
        with self._limits.intake(server=self.config.server) as intake:
            body = await self._calls.body(request, intake=intake, timeout_seconds=timeout_seconds)
            intake.parse(body)
            return decode(body, server=self.config.server)

    @property
    def pods(self) -> Pods:
        """Logs of pods, commands in them, and ports that are forwarded to them."""
        return Pods(self, calls=self._calls, adapted=self._adapted)

    async def text(self, path: str, *, timeout_seconds: float | None = None) -> str:
        """Return the answer at a path that has no objects, such as `/metrics`. Bytes that are no UTF-8 are replaced."""
        with self._limits.intake(server=self.config.server) as intake:
            request = self._adapted(HttpRequest("GET", path, accept="text/plain, */*"))
            body = await self._calls.body(request, intake=intake, timeout_seconds=timeout_seconds)
            return body.decode(errors="replace")

    async def _locate(
        self, kind: Resource | str, key: str | Named, namespace: str | None
    ) -> tuple[Resource, str, str | None]:
        return (await self.resource(kind), *locate(key, namespace=namespace))

    async def _object(
        self,
        method: str,
        path: str,
        resource: Resource,
        *,
        body: Any = None,
        params: Params | None = None,
        content_type: str = JSON,
    ) -> Object:
        answer = await self.request(method, path, body=body, params=params, content_type=content_type)
        return read_object(answer, server=self.config.server, api_version=resource.api_version, kind=resource.kind)

    def _path(
        self,
        resource: Resource,
        name: str | None = None,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        write: bool = False,
    ) -> str:
        """Return the path of objects that are read or written."""
        del write
        return resource.path(name, namespace=namespace, subresource=subresource)

    def _adapted(self, request: HttpRequest) -> HttpRequest:
        """Return what is sent instead of this; for clients that see less than the server has."""
        return request

    async def _pages(self, path: str, pages: P, params: Params) -> P:
        token: str | None = None
        with self._limits.intake(server=self.config.server, is_list=True) as intake:
            while True:
                query = query_of({**params, "continue": token})
                request = self._adapted(HttpRequest("GET", path, query, accept=pages.accept))
                token = pages.add(await self._calls.body(request, intake=intake), intake=intake)
                if token is None:
                    return pages
