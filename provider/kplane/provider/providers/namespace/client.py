"""The client of a namespace that is a cluster of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self
from urllib.parse import unquote

from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.client.body import namespace_of
from kplane.provider.client.client import Client
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.listing import JSON, ObjectList
from kplane.provider.client.resources import Resource
from kplane.provider.client.watch import Watch, WatchEvent
from kplane.provider.errors import NotFound, ProviderError
from kplane.provider.providers.namespace.view import NamespaceView

__all__ = ["NamespaceClient"]

_NAMESPACED: Final = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([^/]+)(/.*)?")
# What a cluster says of itself; all else outside of a namespace is objects.
_DISCOVERY: Final = re.compile(r"/(version|healthz|livez|readyz|openapi)(/.*)?|/api(/v1)?|/apis(/[^/]+){0,2}")

Object = dict[str, Any]
Params = Mapping[str, str | int | bool | None]


class NamespaceClient(Client):
    """Works on one namespace of the `host`'s cluster, by its connections and with its credentials.

    A namespace has no cluster-scoped objects: asking for them raises NotFound, and so does reading in another namespace
    than `default`. Writing there raises Invalid. `before_write` is called before anything is changed.
    """

    def __init__(
        self, host: Client, *, view: NamespaceView, before_write: Callable[[], float | None] | None = None
    ) -> None:
        # Nothing of Client's own is set up: every method of it is here, and asks the host's.
        self._host = host
        self._view = view
        self._check_write: Callable[[], object] = before_write or _allow

    @override
    def __repr__(self) -> str:
        return f"NamespaceClient({self._view.namespace!r} of {self.config.server!r})"

    @property
    @override
    def config(self) -> ClusterConfig:
        """What the host's client connects with."""
        return self._host.config

    @property
    @override
    def limits(self) -> AnswerLimits:
        """Those of the host's client."""
        return self._host.limits

    @property
    @override
    def timeout_seconds(self) -> float:
        """That of the host's client."""
        return self._host.timeout_seconds

    @override
    async def aclose(self) -> None:
        """Leave the host's client open: it is not ours."""

    @override
    async def update(self, config: ClusterConfig) -> None:
        """Leave the host's client as it is: it has its own credentials."""

    @override
    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """As Client's; raises NotFound in another namespace than `default`."""
        found = await self._host.get(resource, name, namespace=self._view.to_read(resource, namespace))
        return self._view.inward(resource, found)

    @override
    async def exists(self, resource: Resource, name: str, *, namespace: str | None = None) -> bool:
        """As Client's; raises NotFound in another namespace than `default`."""
        return await self._host.exists(resource, name, namespace=self._view.to_read(resource, namespace))

    @override
    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page_size: int = 500,
        max_items: int | None = None,
        metadata_only: bool = False,
    ) -> ObjectList:
        """As Client's; raises NotFound in another namespace than `default`."""
        found = await self._host.list(
            resource,
            namespace=self._view.to_read(resource, namespace),
            label_selector=label_selector,
            field_selector=field_selector,
            page_size=page_size,
            max_items=max_items,
            metadata_only=metadata_only,
        )
        return ObjectList([self._view.inward(resource, each) for each in found.items], found.resource_version)

    @override
    async def collect(self, *_arguments: object, **_options: object) -> NoReturn:
        """Refuse: pages of bytes are those of the host. The cluster's cache has what informers are for."""
        raise ProviderError(f"{self!r} gives no raw pages: use the cluster's cache, or list()")

    @override
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
        metadata_only: bool = False,
        initial_events: bool = False,
    ) -> Watch:
        """As Client's; raises NotFound in another namespace than `default`."""
        watch = self._host.watch(
            resource,
            resource_version=resource_version,
            namespace=self._view.to_read(resource, namespace),
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            metadata_only=metadata_only,
            initial_events=initial_events,
        )
        return _NamespaceWatch(watch, resource, self._view)

    @override
    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace if namespace is not None else namespace_of(body))
        found = await self._host.create(resource, self._view.outward(resource, body), namespace=target)
        return self._view.inward(resource, found)

    @override
    async def replace(
        self, resource: Resource, body: Object, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace if namespace is not None else namespace_of(body))
        body = self._view.outward(resource, body)
        found = await self._host.replace(resource, body, namespace=target, subresource=subresource)
        return self._view.inward(resource, found)

    @override
    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace)
        body = self._view.outward(resource, body)
        found = await self._host.patch(resource, name, body, namespace=target, subresource=subresource)
        return self._view.inward(resource, found)

    @override
    async def json_patch(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Object],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace)
        moved = self._view.outward_operations(resource, operations)
        found = await self._host.json_patch(resource, name, moved, namespace=target, subresource=subresource)
        return self._view.inward(resource, found)

    @override
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
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace if namespace is not None else namespace_of(body))
        found = await self._host.apply(
            resource,
            self._view.outward(resource, body),
            namespace=target,
            subresource=subresource,
            force=force,
            field_manager=field_manager,
        )
        return self._view.inward(resource, found)

    @override
    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        propagation: str | None = None,
    ) -> Object:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace)
        found = await self._host.delete(resource, name, namespace=target, uid=uid, propagation=propagation)
        return self._view.inward(resource, found)

    @override
    async def delete_all(self, resource: Resource, *, namespace: str | None = None, label_selector: str) -> None:
        """As Client's; raises Invalid in another namespace than `default`."""
        target = self._to_write(resource, namespace)
        await self._host.delete_all(resource, namespace=target, label_selector=label_selector)

    @override
    async def probe(self, path: str = "/readyz") -> None:
        """As Client's: the host's health."""
        await self._host.probe(path)

    @override
    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        timeout_seconds: float | None = None,
        content_type: str = JSON,
    ) -> Any:
        """As Client's, for what is in namespace `default` or says what the server is, such as /version and /apis.

        Raises NotFound for all else, and Invalid for writing to another namespace.
        """
        resource, target = self._target(method, path)
        if resource is not None:
            body = self._outward_any(resource, body)
        answer = await self._host.request(
            method, target, body=body, params=params, timeout_seconds=timeout_seconds, content_type=content_type
        )
        return answer if resource is None else self._inward_any(resource, answer)

    def _target(self, method: str, path: str) -> tuple[Resource | None, str]:
        """The kind of object that a path is about, if it is, and the host's path."""
        plain = not any(part in {"", ".", ".."} or "/" in part for part in map(unquote, path.split("/")[1:]))
        found = _NAMESPACED.fullmatch(path) if plain else None
        if found is None:
            if plain and method == "GET" and _DISCOVERY.fullmatch(path):
                return None, path
            raise NotFound(404, "NotFound", f"{path} is not in a namespace, and there is nothing else here")
        prefix, namespace, plural, rest = found.groups()
        api_version = prefix.removeprefix("/apis/").removeprefix("/api/")
        resource = Resource(api_version, plural, plural, namespaced=True)
        target = self._view.to_read(resource, namespace) if method == "GET" else self._to_write(resource, namespace)
        return resource, f"{prefix}/namespaces/{target}/{plural}{rest or ''}"

    def _to_write(self, resource: Resource, namespace: str | None) -> str:
        target = self._view.to_write(resource, namespace)
        self._check_write()
        return target

    def _outward_any(self, resource: Resource, body: Any) -> Any:
        match body:
            case Mapping():
                return self._view.outward(resource, body)
            case [*operations]:
                return self._view.outward_operations(resource, operations)
            case _:
                return body

    def _inward_any(self, resource: Resource, answer: Any) -> Any:
        if not isinstance(answer, dict):
            return answer
        items = answer.get("items")
        for each in items if isinstance(items, list) else ():
            if isinstance(each, dict):
                self._view.inward(resource, each)
        return self._view.inward(resource, answer)


class _NamespaceWatch(Watch):
    """A watch of the host's client, whose objects are in namespace `default`."""

    def __init__(self, watch: Watch, resource: Resource, view: NamespaceView) -> None:
        self._watch = watch
        self._kind = resource
        self._view = view

    @override
    async def open(self) -> None:
        """As Watch's."""
        await self._watch.open()

    @override
    async def aclose(self) -> None:
        """As Watch's."""
        await self._watch.aclose()

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @override
    def __aiter__(self) -> Self:
        return self

    @override
    async def __anext__(self) -> WatchEvent:
        event = await anext(self._watch)
        self._view.inward(self._kind, event.object)
        return event

    @override
    async def read(self) -> NoReturn:
        """Refuse: the bytes are those of the host."""
        raise ProviderError("a namespace's watch gives no raw events: iterate over it, or use the cluster's cache")


def _allow() -> None:
    """Hold nothing back."""
