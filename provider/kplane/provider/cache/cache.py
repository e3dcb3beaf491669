"""The objects of one cluster, mirrored kind by kind on demand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from kplane.provider.aio.overflow import unanswered
from kplane.provider.cache.entry import Object
from kplane.provider.cache.feed import FeedState, Streaming
from kplane.provider.cache.informer import Informer, Transform
from kplane.provider.cache.store import Extract, require_same
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ClusterNotReady, NotFound, ProviderError

__all__ = ["Cache"]

_STATES: Final[tuple[FeedState, ...]] = ("unreachable", "connecting", "ready")
Objects = list[Object]


class Cache:
    """Mirrors each kind that is asked for by one informer, which all users share.

    An informer starts with the first read of its kind, and runs until `stop` or `aclose`. `get` and `list` wait at most
    `sync_timeout_seconds` until the informer has all objects, then raise ClusterNotReady. `transform` changes each
    object before it is kept; its identity must stay. `name` is the cluster's, for logs and task names. The client
    belongs to the caller.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str = "",
        transform: Transform | None = None,
        sync_timeout_seconds: float = 30.0,
    ) -> None:
        self._client = client
        self._name = name
        self._transform = transform
        self._sync_timeout_seconds = sync_timeout_seconds
        self._streaming = Streaming()
        self._informers: dict[tuple[Resource, bool], Informer] = {}
        self._indexes: dict[tuple[Resource, bool], dict[str, Extract]] = {}
        self._ended_restarts: Counter[str] = Counter()
        self._closed = False

    @override
    def __repr__(self) -> str:
        return f"Cache({self._name or self._client.config.server!r})"

    @property
    def state(self) -> FeedState:
        """The worst state of its informers; ready if there is none."""
        states = {informer.state for informer in self._informers.values()}
        return next((state for state in _STATES if state in states), "ready")

    @property
    def error(self) -> str:
        """Why an informer cannot reach the server; empty if all can."""
        return next((informer.error for informer in self._informers.values() if informer.error), "")

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason: closed, expired, refused, unreachable, failed."""
        return sum((Counter(informer.restarts) for informer in self._informers.values()), self._ended_restarts)

    def size_bytes(self) -> Mapping[str, int]:
        """Return the bytes of the objects by kind."""
        sizes: Counter[str] = Counter()
        for (resource, _), informer in self._informers.items():
            sizes[resource.kind] += informer.size_bytes
        return sizes

    def informer(self, resource: Resource, *, metadata_only: bool = False) -> Informer:
        """Return the informer of a kind; it starts now if it is new.

        With `metadata_only` it is another informer, which keeps apiVersion, kind and metadata. Raises ProviderError if
        the cache is closed.
        """
        key = resource, metadata_only
        informer = self._informers.get(key)
        if informer is None:
            if self._closed:
                raise ProviderError(f"{self!r} is closed")
            informer = Informer(
                self._client,
                resource,
                metadata_only=metadata_only,
                transform=self._transform,
                streaming=self._streaming,
                cluster=self._name,
            )
            for field, extract in self._indexes.get(key, {}).items():
                informer.add_index(field, extract)
            self._informers[key] = informer
            informer.start()
        return informer

    def index_field(self, resource: Resource, field: str, extract: Extract, *, metadata_only: bool = False) -> None:
        """Index a field of a kind by the values of `extract`, before or after objects are there.

        The same function may be added twice; another one for the same field raises ProviderError. Present objects are
        decoded at once: with very many, index before the first read.
        """
        key = resource, metadata_only
        known = self._indexes.setdefault(key, {}).setdefault(field, extract)
        require_same(known, extract, resource=resource, field=field)
        informer = self._informers.get(key)
        if informer is not None:
            informer.add_index(field, extract)

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, metadata_only: bool = False
    ) -> Object:
        """Return a copy of an object as last seen. Raises NotFound; ClusterNotReady before all objects are known."""
        informer = await self._synced(resource, metadata_only=metadata_only)
        found = informer.get(name, namespace=namespace)
        if found is None:
            where = f"{namespace}/{name}" if namespace else name
            raise NotFound(404, "NotFound", f"{resource} {where} is not in {self!r}")
        return found

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
        metadata_only: bool = False,
    ) -> Objects:
        """Return copies of the objects of a kind as last seen; `namespace=None` means all namespaces.

        `field` are values of indexed fields, all of which must match. Raises ProviderError for a field without index or
        an invalid selector, ClusterNotReady before all objects are known.
        """
        informer = await self._synced(resource, metadata_only=metadata_only)
        return informer.list(namespace=namespace, label_selector=label_selector, field=field)

    async def stop(self) -> None:
        """End all informers with their handlers, and forget all objects; the next read starts anew."""
        informers, self._informers = self._informers, {}
        await asyncio.gather(*(informer.aclose() for informer in informers.values()))
        for informer in informers.values():
            self._ended_restarts.update(informer.restarts)

    async def aclose(self) -> None:
        """End the cache for good."""
        self._closed = True
        await self.stop()

    async def _synced(self, resource: Resource, *, metadata_only: bool) -> Informer:
        informer = self.informer(resource, metadata_only=metadata_only)
        if not informer.synced.is_set():
            with unanswered():
                try:
                    async with asyncio.timeout(self._sync_timeout_seconds):
                        await informer.wait_synced()
                except TimeoutError as error:
                    why = informer.error or f"nothing came for {self._sync_timeout_seconds:g} s"
                    raise ClusterNotReady(f"the {resource.plural} of {self!r} are not known yet: {why}") from error
        return informer
