"""Keep a local copy of a collection, or of one object, and tell a handler about every change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from typing_extensions import override

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.entry import Key
from kplane.provider.cache.feed import Feed
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.client.watch import Watch, WatchEvent
from kplane.provider.errors import NotFound

__all__ = ["Handler", "Key", "Reflector", "key_of"]

log: Final = logging.getLogger(__name__)

Handler = Callable[[str, dict[str, Any]], None]
"""Called with ADDED, MODIFIED or DELETED, and the object (for DELETED: as last known)."""


class Reflector(Feed):
    """Mirrors a collection into `store` while `run` runs; `synced` is set once the store was complete.

    Without `name` it lists in pages, watches from there, resumes after lost connections, and lists again when its
    resourceVersion expired and at least every `relist_seconds` (with jitter), so that nothing missed stays missed.

    With `name` it needs `get` and `watch` on that one name only (a Role with `resourceNames`): each round opens a watch
    with the field selector `metadata.name=<name>`, which is what RBAC compares with `resourceNames`, and no
    resourceVersion, then reads the object. Changes after the read come by the watch, and what the watch repeats from
    before the read is known by its lower resourceVersion. So no change is lost between the two, an absent object is
    known to be absent, and there is no resourceVersion that could expire. An identity that gets its permission only
    later is tried again: first after half a second, after half a minute still every ten seconds.

    Objects are without managedFields. With `metadata_only` the server is asked for apiVersion, kind and metadata alone;
    that is for collections.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        name: str | None = None,
        label_selector: str | None = None,
        metadata_only: bool = False,
        relist_seconds: float = 600.0,
        watch_seconds: float = 300.0,
        idle_timeout_seconds: float = 120.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(relist_seconds=relist_seconds, watch_seconds=watch_seconds, backoff=backoff)
        self.store: dict[Key, dict[str, Any]] = {}
        self.synced: Final = asyncio.Event()
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._name = name
        self._label_selector = label_selector
        self._metadata_only = metadata_only
        self._idle_timeout_seconds = idle_timeout_seconds
        self._handler: Handler = _ignore

    @override
    def __str__(self) -> str:
        where = f" in {self._namespace}" if self._namespace else ""
        return f"{self._resource.plural}{f' {self._name}' if self._name else ''}{where}"

    @override
    async def run(self, handler: Handler | None = None) -> NoReturn:
        """Mirror until cancelled. The handler is called in the loop and must not block; what it raises is logged."""
        self._handler = handler or _ignore
        await super().run()

    @override
    async def _follow(self) -> None:
        await (self._follow_collection() if self._name is None else self._follow_object(self._name))

    async def _follow_collection(self) -> None:
        if self._outdated:
            found = await self._client.list(
                self._resource,
                namespace=self._namespace,
                label_selector=self._label_selector,
                metadata_only=self._metadata_only,
            )
            self._note_listing(least=0.8)
            self._replace(found.items)
            self._resource_version = found.resource_version
            self.synced.set()
        seconds = self._next_watch_seconds()
        async with self._watch(resource_version=self._resource_version, seconds=seconds) as watch:
            await watch.open()
            with self._living(seconds):
                async for event in watch:
                    self._take(event)

    async def _follow_object(self, name: str) -> None:
        seconds = min(self._watch_seconds, self._relist_seconds) * random.uniform(0.8, 1.0)  # noqa: S311
        async with self._watch(resource_version=None, seconds=seconds) as watch:
            await watch.open()
            try:
                found = [await self._client.get(self._resource, name, namespace=self._namespace)]
            except NotFound:
                found = []
            self._replace(found)
            self.synced.set()
            with self._living(seconds):
                async for event in watch:
                    self._take(event)

    def _watch(self, *, resource_version: str | None, seconds: float) -> Watch:
        return self._client.watch(
            self._resource,
            resource_version=resource_version,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=None if self._name is None else f"metadata.name={self._name}",
            timeout_seconds=seconds,
            idle_timeout_seconds=self._idle_timeout_seconds,
            metadata_only=self._metadata_only,
        )

    def _take(self, event: WatchEvent) -> None:
        found = event.object
        if event.type != "BOOKMARK" and not (self._name is not None and self._repeated(found)):
            if event.type == "DELETED":
                self._delete(found)
            else:
                self._upsert(found)
        if self._name is None:
            self._resource_version = _version(found) or self._resource_version

    def _repeated(self, found: dict[str, Any]) -> bool:
        """Whether an event is from before what was read; resourceVersions of one server that are numbers grow."""
        known = self.store.get(key_of(found))
        with contextlib.suppress(ValueError):
            return known is not None and int(_version(found)) < int(_version(known))
        return False

    def _replace(self, items: list[dict[str, Any]]) -> None:
        present = {key_of(item) for item in items}
        for key in [key for key in self.store if key not in present]:
            self._call("DELETED", self.store.pop(key))
        for item in items:
            self._upsert(item)

    def _upsert(self, found: dict[str, Any]) -> None:
        key = key_of(found)
        known = self.store.get(key)
        if known is not None and known["metadata"].get("uid") != found["metadata"].get("uid"):
            self._call("DELETED", self.store.pop(key))
            known = None
        if known is None:
            self.store[key] = found
            self._call("ADDED", found)
        elif _version(found) != _version(known):
            self.store[key] = found
            self._call("MODIFIED", found)

    def _delete(self, found: dict[str, Any]) -> None:
        if self.store.pop(key_of(found), None) is not None:
            self._call("DELETED", found)

    def _call(self, event: str, found: dict[str, Any]) -> None:
        try:
            self._handler(event, found)
        except Exception:
            log.exception("handler failed for %s of %s %s", event, self._resource, "/".join(key_of(found)))


def _ignore(_event: str, _object: dict[str, Any]) -> None:
    """Take the place of a handler where only the store is read."""


def key_of(found: Mapping[str, Any]) -> Key:
    """Namespace (empty for cluster-scoped kinds) and name of an object."""
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata.get("name", "")


def _version(found: dict[str, Any]) -> str:
    return str(found["metadata"].get("resourceVersion", ""))
