"""Reads from an API server: objects, collections, watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kplane.provider.client.body import query_of
from kplane.provider.client.keys import Named, display_key
from kplane.provider.client.listing import JSON, METADATA, Listing, ObjectList, Pages, listed
from kplane.provider.client.resources import Resource
from kplane.provider.client.rest import Params, Rest
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.typed import Kind, ObjectT, as_kind, typed_of
from kplane.provider.client.watch import Asked, Watch
from kplane.provider.client.wire import translated
from kplane.provider.errors import Expired, NotFound

__all__ = ["Reader"]

_LIST_DEADLINES: Final = 10

P = TypeVar("P", bound=Pages)


class Reader(Rest):
    """The read methods of a `Client`."""

    async def get(
        self, kind: Kind[ObjectT], key: str | Named, *, namespace: str | None = None, subresource: str | None = None
    ) -> ObjectT:
        """Read an object or its subresource, such as `scale`. Raises NotFound."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        path = self._path(resource, name, namespace=namespace, subresource=subresource)
        obj = await self._object("GET", path, resource, key=display_key(name, namespace=namespace))
        return as_kind(kind, obj, source=self.config.server)

    async def exists(self, kind: Kind[Any], key: str | Named, *, namespace: str | None = None) -> bool:
        """Tell whether an object exists, without keeping the answer."""
        resource, name, namespace = await self._locate(kind, key, namespace)
        path, display = self._path(resource, name, namespace=namespace), display_key(name, namespace=namespace)
        try:
            await self._calls.drop(
                self._adapted(HttpRequest("GET", path, accept=METADATA, kind=resource.name, key=display))
            )
        except NotFound:
            return False
        return True

    async def list(
        self,
        kind: Kind[ObjectT],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = 500,
        max_items: int | None = None,
        metadata_only: bool = False,
    ) -> ObjectList[ObjectT]:
        """Read a collection in pages of the same resourceVersion; `namespace=None` selects all namespaces.

        `page_size` counts objects. Raises AnswerTooLarge if there are more than `max_items`. With `metadata_only`,
        the server sends only apiVersion, kind and metadata.
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
        return listed(kind, listing, source=self.config.server)

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
        """Read a collection as `list` does, into a new object of `pages`."""
        path = self._path(resource, namespace=namespace)
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        # A deadline for all pages, because a server may send pages without end.
        with translated(server=self.config.server, asked=f"list of {resource.plural}"):
            async with asyncio.timeout(_LIST_DEADLINES * self._timeout_seconds):
                try:
                    return await self._pages(resource, path, pages(), {**selectors, "limit": page_size})
                except Expired:
                    # The snapshot expired between two pages. A single request for all objects cannot expire.
                    return await self._pages(resource, path, pages(), selectors)

    def watch(
        self,
        kind: Kind[ObjectT],
        *,
        resource_version: str | None = None,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        metadata_only: bool = False,
        initial_events: bool = False,
    ) -> Watch[ObjectT]:
        """Watch a collection from a resourceVersion; with None, the watch begins with all objects as ADDED.

        The server ends the watch after `timeout_seconds`. The client gives up after `idle_timeout_seconds` without even
        a bookmark, which a server sends about every minute. If this client gets no data from the server for 30 s, the
        watch requests the version by another connection, and gives up without an answer within 15 s.

        With `metadata_only`, the server sends only apiVersion, kind and metadata. With `initial_events`, a bookmark
        annotated `k8s.io/initial-events-end` follows the initial objects (KEP-3157). Opening the watch raises Invalid
        if the server does not support this, and raises as `resource`.
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
            request = self._adapted(HttpRequest("GET", path, query, accept=accept, kind=resource.name))
            return Asked(resource, request, None if metadata_only else typed_of(kind))

        return Watch(
            self._transport,
            asking,
            open_timeout_seconds=self._timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            limits=self._limits,
            answered=self._answered,
            liveness=self._liveness,
        )

    async def _pages(self, resource: Resource, path: str, pages: P, params: Params) -> P:
        token: str | None = None
        with self._limits.intake(server=self.config.server, is_list=True) as intake:
            while True:
                query = query_of({**params, "continue": token})
                request = self._adapted(HttpRequest("GET", path, query, accept=pages.accept, kind=resource.name))
                token = pages.add(await self._calls.body(request, intake=intake), intake=intake)
                if token is None:
                    return pages
