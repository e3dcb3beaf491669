"""Provider of Cluster API: every `Cluster` whose control plane is initialized.

Upstream: providers/cluster-api of multicluster-runtime, and the contract of Cluster API for its kubeconfig Secrets.

```python
async with Client(ClusterConfig.in_cluster()) as client:
    manager = Manager(client.config, ClusterApiProvider(client, namespace="fleet"), name="my-operator")
```

The provider watches `clusters` of cluster.x-k8s.io, v1beta2 or v1beta1. A Cluster is ready when its control plane was
initialized: `status.initialization.controlPlaneInitialized`, or with v1beta1 `status.controlPlaneReady` or the
condition ControlPlaneInitialized. Cluster API never revokes this state. If a custom `ready` turns false, the engaged
cluster stays and is kept up to date. The health of an engaged cluster is checked directly.

A cluster is named `<namespace>/<name>`. Its credentials are the key `value` of the Secret `<name>-kubeconfig`. The
Secret needs the label `cluster.x-k8s.io/cluster-name`, as the contract demands, and is watched. A renewed token or
client certificate keeps the engagement, and restarts no watch. Another server, CA or user makes a new engagement. A
missing or invalid Secret is logged, and the engaged cluster stays. Kubeconfigs with exec plugins or files are refused.

The cluster of a Cluster that is being deleted, is gone, or no longer matches the selector, is disengaged.

The identity of `client` needs `list` and `watch` on `clusters`, and `list`, `watch` and `get` on `secrets`, in
`namespace` or in all namespaces. Of other Secrets with the label, the provider reads only the metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.condition import is_true, section
from kplane.provider.providers._support.labelled import LabelledSecrets
from kplane.provider.providers._support.memo import KubeconfigMemo
from kplane.provider.providers._support.object_backed import KEEP, Keep, Object, ObjectBackedProvider, cluster_name
from kplane.provider.providers._support.secret import value_of

__all__ = ["ClusterApiProvider", "control_plane_initialized"]

_GROUP: Final = "cluster.x-k8s.io"
_CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"
_SUFFIX: Final = "-kubeconfig"
_KUBECONFIG_KEY: Final = "value"


def control_plane_initialized(cluster: Object) -> bool:
    """Tell whether the control plane of a Cluster (v1beta2 or v1beta1) has been initialized."""
    status = section(cluster, "status")
    return (
        section(status, "initialization").get("controlPlaneInitialized") is True
        or status.get("controlPlaneReady") is True
        or is_true(cluster, "ControlPlaneInitialized")
    )


class ClusterApiProvider:
    """Engages every ready Cluster of Cluster API.

    `client` reaches the management cluster, and belongs to the caller. `version` must be served by its API server.
    `ready` replaces the check of an initialized control plane. The function gets the object and must not block.
    `namespace=None` means all namespaces. `label_selector` has the syntax of the API, such as `a=b,c!=d`. Raises
    ProviderError for an unknown version.
    """

    def __init__(
        self,
        client: Client,
        *,
        version: Literal["v1beta2", "v1beta1"] = "v1beta2",
        ready: Callable[[Object], bool] = control_plane_initialized,
        namespace: str | None = None,
        label_selector: str | None = None,
    ) -> None:
        if version not in {"v1beta2", "v1beta1"}:
            raise ProviderError(f"Cluster API {version!r} is not supported; there are v1beta2 and v1beta1")
        self._secrets = LabelledSecrets(client, label_selector=_CLUSTER_LABEL, namespace=namespace)
        self._kubeconfigs = KubeconfigMemo()
        self._objects = ObjectBackedProvider(
            client,
            Resource(f"{_GROUP}/{version}", "Cluster", "clusters", namespaced=True),
            plan=self._plan,
            what="Cluster API cluster",
            ready=ready,
            namespace=namespace,
            label_selector=label_selector,
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "cluster-api"

    def has_synced(self) -> bool:
        """Tell whether the initial lists of Clusters and of Secrets were read."""
        return self._objects.has_synced() and self._secrets.synced.is_set()

    async def run(self, fleet: Fleet) -> None:
        """Follow Clusters and their Secrets until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wake_all(), name="Secrets of Cluster API are known")
            tasks.create_task(self._secrets.run(self._wake_owner), name="Secrets of Cluster API")
            await self._objects.run(fleet)

    async def _wake_all(self) -> None:
        await self._secrets.synced.wait()
        self._objects.wake_all()

    def _wake_owner(self, namespace: str, secret: str) -> None:
        if secret.endswith(_SUFFIX):
            self._objects.wake(secret.removesuffix(_SUFFIX), namespace=namespace)

    async def _plan(self, obj: Object) -> Cluster | Keep | None:
        metadata = obj["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        if not self._secrets.synced.is_set():
            return KEEP
        namespace, name = metadata["namespace"], metadata["name"]
        values = await self._secrets.values(namespace, f"{name}{_SUFFIX}")
        config = self._kubeconfigs.read(value_of(values, _KUBECONFIG_KEY))
        return Cluster(cluster_name(namespace, name), config=config, credentials=values)
