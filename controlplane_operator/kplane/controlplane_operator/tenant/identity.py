"""Identity of a cluster: the uid of its namespace `kube-system`, independent of the address of the cluster.

Clusters have no id of their own. OpenTelemetry (`k8s.cluster.uid`) and the ClusterProperty `cluster.clusterset.k8s.io`
of KEP-2149 use the uid of this namespace as well.
"""

from __future__ import annotations

from typing import Final

from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.provider import AlreadyExists, Client, NotFound
from kplane.provider.client.resources import NAMESPACES

__all__ = ["find_cluster_uid", "read_cluster_uid"]

_NAMESPACE: Final = "kube-system"
_MAX_LENGTH: Final = 64
"""Maximum length of the uid, as in the CRD."""


async def find_cluster_uid(client: Client) -> str | None:
    """Return the uid of namespace `kube-system`; None if the namespace does not exist.

    Raises BootstrapFailed if the answer has no valid uid, and the errors of `client`.
    """
    try:
        namespace = await client.get(NAMESPACES, _NAMESPACE)
    except NotFound:
        return None
    uid = namespace["metadata"].get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= _MAX_LENGTH:
        raise BootstrapFailed(f"failed to identify the cluster: its namespace {_NAMESPACE} has no uid")
    return uid


async def read_cluster_uid(client: Client) -> str:
    """Return the uid of namespace `kube-system`, and create the namespace if it does not exist.

    An API server creates the namespace in its first minute. Raises BootstrapFailed, and the errors of `client`.
    """
    for _ in range(2):
        if (uid := await find_cluster_uid(client)) is not None:
            return uid
        try:
            await client.create(NAMESPACES, {"metadata": {"name": _NAMESPACE}})
        except AlreadyExists:
            continue
    raise BootstrapFailed(f"failed to identify the cluster: namespace {_NAMESPACE} is created and does not exist")
