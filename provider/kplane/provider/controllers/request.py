"""Requests to reconcile an object of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from typing_extensions import override

from kplane.provider.cluster.context import LOCAL, cluster_context

__all__ = ["ObjectKey", "Request", "single_cluster"]

T = TypeVar("T")


class ObjectKey(NamedTuple):
    """Namespace (empty for cluster-scoped kinds) and name of an object."""

    namespace: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Request(NamedTuple):
    """An object of a cluster to reconcile. Equal requests are merged.

    The string form matches upstream: `cluster://acme/namespace/name`, and `namespace/name` in the local cluster.
    """

    cluster: str
    namespace: str
    name: str

    @property
    def key(self) -> ObjectKey:
        """The object, without its cluster."""
        return ObjectKey(self.namespace, self.name)

    @override
    def __str__(self) -> str:
        key = f"{self.namespace}/{self.name}"
        return f"cluster://{self.cluster}/{key}" if self.cluster != LOCAL else key


def single_cluster(reconcile: Callable[[ObjectKey], Awaitable[T]]) -> Callable[[Request], Awaitable[T]]:
    """Let a reconciler of a single cluster work on a fleet; upstream's ReconcilerWithClusterInContext.

    The reconciler is called with namespace and name; the cluster is `Manager.cluster_from_context()`.
    """

    async def within(request: Request) -> T:
        with cluster_context(request.cluster):
            return await reconcile(request.key)

    return within
