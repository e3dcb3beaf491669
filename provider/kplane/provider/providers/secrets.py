"""Provider of kubeconfigs in labelled Secrets of a namespace."""

from __future__ import annotations

from typing import Final

from kplane.provider.client.client import Client
from kplane.provider.client.resources import SECRETS
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.memo import KubeconfigMemo
from kplane.provider.providers._support.object_backed import Object, ObjectBackedProvider
from kplane.provider.providers._support.secret import value_of, values_of

__all__ = ["KUBECONFIG_KEY", "KUBECONFIG_LABEL", "KubeconfigProvider"]

KUBECONFIG_LABEL: Final = "sigs.k8s.io/multicluster-runtime-kubeconfig"
"""Label of Secrets with a kubeconfig, with value "true". Same as upstream's DefaultKubeconfigSecretLabel."""

KUBECONFIG_KEY: Final = "kubeconfig"
"""Key of the kubeconfig in the data of a Secret. Same as upstream's DefaultKubeconfigSecretKey."""


class KubeconfigProvider:
    """Engages a cluster for every Secret of `namespace` with label `label: "true"`, under the Secret's name.

    Address and credentials come from the current context of the kubeconfig under `key`. The writers of these Secrets
    are not trusted: a kubeconfig that runs a program (`exec`) or names a file is refused. The decoded data of the
    Secret is the cluster's `credentials`.

    A renewed token or certificate keeps the cluster's connections; another server, CA or identity makes another
    cluster. A cluster is removed when its Secret loses the label, is being deleted, or is gone. While the key is
    missing or the kubeconfig cannot be used, the engaged cluster stays, and a warning names the cause.

    `client` reaches the cluster with the Secrets, and belongs to the caller. The identity of `client` needs get, list
    and watch on secrets in the namespace. Upstream's `providers/kubeconfig`.
    """

    def __init__(
        self, client: Client, *, namespace: str, label: str = KUBECONFIG_LABEL, key: str = KUBECONFIG_KEY
    ) -> None:
        if not namespace:
            raise ProviderError("the Secrets of one namespace are followed: say which")
        self._key = key
        self._kubeconfigs = KubeconfigMemo()
        self._secrets = ObjectBackedProvider(
            client,
            SECRETS,
            plan=self._plan,
            what="kubeconfig Secret",
            name=lambda _namespace, name: name,
            namespace=namespace,
            label_selector=f"{label}=true",
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "kubeconfig"

    def has_synced(self) -> bool:
        """Tell whether the initial list of Secrets was read."""
        return self._secrets.has_synced()

    async def run(self, fleet: Fleet) -> None:
        """Follow the Secrets until cancelled."""
        await self._secrets.run(fleet)

    def _plan(self, secret: Object) -> Cluster | None:
        metadata = secret["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        values = values_of(secret)
        config = self._kubeconfigs.read(value_of(values, self._key))
        return Cluster(metadata["name"], config=config, credentials=values)
