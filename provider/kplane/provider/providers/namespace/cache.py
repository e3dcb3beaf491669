"""The cache of a namespace that is a cluster of its own: its part of the host's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from kplane.provider.cache.cache import Cache
from kplane.provider.cache.delivery import EventHandler, Registration
from kplane.provider.cache.event import Event
from kplane.provider.cache.feed import FeedState
from kplane.provider.cache.indexes import Extract
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ProviderError
from kplane.provider.providers.namespace.view import DEFAULT, NamespaceView, within

__all__ = ["NamespaceCache"]

Object = dict[str, Any]
Objects = list[Object]
Keys = list[tuple[str, str]]


class NamespaceCache(Cache):
    """Reads one namespace in the cache of the `host`, which has one informer of a kind for all of them.

    The host's informers go on when this one ends; handlers that were added here do not. An indexed field is indexed in
    the host, by what `extract` makes of an object as it is here: so each namespace may index it by the same function,
    and the host finds objects by it in all namespaces.
    """

    def __init__(self, host: Cache, client: Client, *, view: NamespaceView) -> None:
        super().__init__(client, name=view.namespace)
        self._host = host
        self._view = view

    @override
    def informer(self, resource: Resource, *, metadata_only: bool = False) -> Informer:
        """As Cache's; raises NotFound for cluster-scoped kinds."""
        if self._closed:
            raise ProviderError(f"{self!r} is closed")
        self._view.to_read(resource, None)
        key, whole = (resource, metadata_only), self._host.informer(resource, metadata_only=metadata_only)
        part = self._informers.get(key)
        if not isinstance(part, _Part) or part.whole is not whole:
            part = self._informers[key] = _Part(whole, self._view)
        return part

    @override
    def index_field(self, resource: Resource, field: str, extract: Extract, *, metadata_only: bool = False) -> None:
        """As Cache's."""
        self._host.index_field(resource, field, _Within(resource, extract), metadata_only=metadata_only)


@dataclass(frozen=True, slots=True)
class _Within:
    """Extracts from an object as its namespace's cluster has it. One for all namespaces, so that they can share it."""

    resource: Resource
    extract: Extract

    def __call__(self, found: Object) -> list[str]:
        return [*self.extract(within(self.resource, found))]


class _Part(Informer):
    """One namespace of an informer of the host."""

    def __init__(self, whole: Informer, view: NamespaceView) -> None:
        # Nothing of Informer's own is set up: every method of it is here, and asks the host's.
        self.whole = whole
        self.resource = whole.resource
        self.metadata_only = whole.metadata_only
        self.synced = whole.synced
        self._view = view
        self._registrations: list[Registration] = []

    @override
    def __repr__(self) -> str:
        return f"{self.whole!r} in {self._view.namespace!r}"

    @property
    @override
    def state(self) -> FeedState:
        """As the host's."""
        return self.whole.state

    @property
    @override
    def error(self) -> str:
        """As the host's."""
        return self.whole.error

    @property
    @override
    def restarts(self) -> Mapping[str, int]:
        """None of its own: they are the host's."""
        return {}

    @property
    @override
    def size_bytes(self) -> int:
        """None of its own: the objects are the host's."""
        return 0

    @override
    def start(self) -> None:
        """Leave it to the host, whose informers begin by themselves."""

    @override
    async def aclose(self) -> None:
        """End the handlers that were added here."""
        for registration in self._registrations:
            registration.remove()
        self._registrations.clear()

    @override
    async def wait_synced(self) -> None:
        """As Informer's."""
        await self.whole.wait_synced()

    @override
    def add_handler(self, handler: EventHandler, *, namespace: str | None = None) -> Registration:
        """As Informer's; raises NotFound for another namespace than `default`."""

        def see(event: Event) -> None:
            handler(_PartEvent(event, self._view))

        registration = self.whole.add_handler(see, namespace=self._view.to_read(self.resource, namespace))
        # Those that their handlers' owners ended are nothing to end later.
        self._registrations = [each for each in self._registrations if not each.removed] + [registration]
        return registration

    @override
    def add_index(self, field: str, extract: Extract) -> None:
        """As Informer's, with what `extract` makes of an object as it is here."""
        self.whole.add_index(field, _Within(self.resource, extract))

    @override
    def get(self, name: str, *, namespace: str | None = None) -> Object | None:
        """As Informer's."""
        found = self.whole.get(name, namespace=self._view.namespace) if namespace == DEFAULT else None
        return None if found is None else self._view.inward(self.resource, found)

    @override
    def list(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Objects:
        """As Informer's; raises NotFound for another namespace than `default`."""
        target = self._view.to_read(self.resource, namespace)
        found = self.whole.list(namespace=target, label_selector=label_selector, field=field)
        return [self._view.inward(self.resource, each) for each in found]

    @override
    def keys(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> Keys:
        """As Informer's; raises NotFound for another namespace than `default`."""
        target = self._view.to_read(self.resource, namespace)
        found = self.whole.keys(namespace=target, label_selector=label_selector, field=field)
        return [(DEFAULT, name) for _, name in found]


class _PartEvent(Event):
    """An event of the host, of an object that is in `default` here."""

    __slots__ = ("_view",)

    def __init__(self, event: Event, view: NamespaceView) -> None:
        super().__init__(event.kind, event.entry, reader=event.reader, old=event.old_entry, initial=event.initial)
        self._view = view

    @property
    @override
    def namespace(self) -> str:
        return DEFAULT

    @property
    @override
    def object(self) -> Object:
        return self._view.inward(self.resource, super().object)

    @property
    @override
    def metadata(self) -> Object:
        return self._inward_metadata(super().metadata)

    @property
    @override
    def old(self) -> Object | None:
        found = super().old
        return None if found is None else self._view.inward(self.resource, found)

    @property
    @override
    def old_metadata(self) -> Object | None:
        found = super().old_metadata
        return None if found is None else self._inward_metadata(found)

    def _inward_metadata(self, metadata: Object) -> Object:
        self._view.inward(self.resource, {"metadata": metadata})
        return metadata
