"""Provider of the namespaces of a host cluster: each namespace appears as a cluster."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from kplane.provider.cache.cache import Cache
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.client import Client
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.cluster.cluster import Cluster, Wiring
from kplane.provider.cluster.context import LOCAL
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.object_backed import Object, ObjectBackedProvider
from kplane.provider.providers.namespace.cache import NamespaceCache
from kplane.provider.providers.namespace.client import NamespaceClient
from kplane.provider.providers.namespace.view import NamespaceView

__all__ = ["UID_ATTRIBUTE", "NamespaceProvider"]

UID_ATTRIBUTE: Final = "namespaceUID"
"""Attribute of a cluster: metadata.uid of its namespace. A recreated namespace is another cluster."""


class NamespaceProvider:
    """Engages every namespace of `host` as a cluster of its name, whose only namespace is `default`.

    The provider is for trials, and for components that work on a single cluster each. The objects of the namespace
    appear in `default`; there are no cluster-scoped objects. Reads in another namespace or of a cluster-scoped kind
    raise NotFound; writes to another namespace raise Invalid. The view translates `metadata.namespace`, and the
    namespaces of objects that an Event names, in both directions and in patches. All other fields stay as they are.

    All namespaces share the host's connections, credentials and cache, with a single informer for each kind. So this is
    a view, and no security boundary. A cluster is engaged until its namespace is gone, also during its termination.
    `label_selector` limits the namespaces. `host` must not be the manager's local cluster, and belongs to the caller:
    close it after the manager. The host's identity needs list and watch of namespaces, and of all kinds that are used,
    in all namespaces. Upstream's `providers/namespace`.
    """

    def __init__(self, host: Cluster, *, label_selector: str | None = None) -> None:
        if host.name == LOCAL:
            raise ProviderError(
                "the namespaces' host cannot be the manager's local cluster; give a cluster of its own:"
                " Cluster('host', config=...)"
            )
        self.host: Final = host
        """The cluster with all namespaces."""
        self._label_selector = label_selector
        self._namespaces: ObjectBackedProvider | None = None

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "namespace"

    def has_synced(self) -> bool:
        """Tell whether the initial list of namespaces was read."""
        return self._namespaces is not None and self._namespaces.has_synced()

    async def run(self, fleet: Fleet) -> None:
        """Follow the namespaces until cancelled."""
        self._namespaces = ObjectBackedProvider(
            self.host.client, NAMESPACES, plan=self._plan, what="namespace", label_selector=self._label_selector
        )
        await self._namespaces.run(fleet)

    def _plan(self, namespace: Object) -> Cluster:
        metadata = namespace["metadata"]
        return _NamespaceCluster(self.host, metadata["name"], uid=str(metadata.get("uid", "")))


class _NamespaceCluster(Cluster):
    """A namespace of `host` as a cluster."""

    def __init__(self, host: Cluster, namespace: str, *, uid: str) -> None:
        super().__init__(namespace, config=host.config, attributes={UID_ATTRIBUTE: uid})
        self._host = host
        self._view = NamespaceView(namespace)

    @override
    def wire(self, wiring: Wiring) -> None:
        super().wire(wiring)
        if wiring.transform is not None and self._host.health.state != "Gone":
            self._host.wire(Wiring(transform=wiring.transform))

    @override
    def make_client(self) -> Client:
        wiring = self._live.wiring
        return NamespaceClient(
            self._host.client,
            view=self._view,
            before_write=self._live.before_write,
            field_manager=wiring.field_manager,
            field_validation=wiring.field_validation,
            on_warning=wiring.on_warning,
        )

    @property
    @override
    def server_state(self) -> ServerState:
        return self._host.server_state

    @override
    def make_cache(self) -> Cache:
        return NamespaceCache(self._host.cache, self.client, view=self._view, scope_of=self.cache_scope)
