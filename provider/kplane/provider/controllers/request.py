"""What a reconciler is asked to look at: an object of a cluster."""

from __future__ import annotations

from typing import Final, NamedTuple

from typing_extensions import override

__all__ = ["LOCAL", "ObjectKey", "Request"]

LOCAL: Final = ""
"""Name of the cluster that a manager itself belongs to; upstream's LocalCluster."""


class ObjectKey(NamedTuple):
    """Namespace (empty for cluster-scoped kinds) and name of an object."""

    namespace: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Request(NamedTuple):
    """An object of a cluster. Equal requests are one; the same object in two clusters is two.

    It is written as upstream's: `cluster://a/namespace/name`, and `namespace/name` in the local cluster.
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
        return f"cluster://{self.cluster}/{self.key}" if self.cluster != LOCAL else str(self.key)
