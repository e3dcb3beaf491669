"""Provider of the Cluster Inventory API: every ClusterProfile whose control plane is healthy.

Upstream: SIG Multicluster's KEP-4322 (ClusterProfile) and KEP-5339 (access providers), and
providers/cluster-inventory-api of multicluster-runtime.

```python
access = AccessProviders.load(Path("/etc/kplane/access-providers.json"))
manager = Manager(client.config, ClusterInventoryProvider(client, access=access), name="my-operator")
```

The provider watches `clusterprofiles` of multicluster.x-k8s.io/v1alpha1. A profile is ready when its condition
ControlPlaneHealthy is True. If the condition turns false, the engaged cluster stays and is kept up to date, because the
health of an engaged cluster is checked directly. The name of a cluster is `<namespace>/<name>`. Address and credentials
come from exactly one of two sources:

- `access`: `status.accessProviders` of the profile, or the older `status.credentialProviders`, and an exec plugin that
  this side's configuration names for one of them (see AccessProviders). Profiles do not choose the program.
- `consumer`: the Secret in the profile's namespace with the labels `x-k8s.io/cluster-inventory-consumer=<consumer>`
  and `x-k8s.io/cluster-profile=<profile>`, whose key `Config` is a kubeconfig. This source runs no program and reads no
  file.

Renewed credentials of the same cluster and user update the engagement; any other change makes a new engagement.
Missing, duplicate and invalid sources are logged, and the engaged cluster stays. The cluster of a profile that is
being deleted, is gone, or no longer matches the selector, is disengaged.

The identity of `client` needs `list` and `watch` on `clusterprofiles`, and on `secrets` if `consumer` is given, in
`namespace`, or in all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.cache.entry import Key
from kplane.provider.cache.event import Event
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.resources import SECRETS, Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import KubeconfigError, ProviderError
from kplane.provider.providers._support.condition import is_true, section
from kplane.provider.providers._support.memo import KubeconfigMemo
from kplane.provider.providers._support.object_backed import KEEP, Keep, Object, ObjectBackedProvider, cluster_name
from kplane.provider.providers._support.secret import value_of, values_of
from kplane.provider.providers.inventory.access import AccessProviders

__all__ = ["CLUSTER_IDS", "CLUSTER_PROFILES", "ClusterInventoryProvider", "control_plane_healthy"]

CLUSTER_PROFILES: Final = Resource(
    "multicluster.x-k8s.io/v1alpha1", "ClusterProfile", "clusterprofiles", namespaced=True
)

CLUSTER_IDS: Final = ("cluster.clusterset.k8s.io", "clusterset.k8s.io")
"""Properties that identify a cluster in its set, and the set (KEP-2149)."""

_CONSUMER_LABEL: Final = "x-k8s.io/cluster-inventory-consumer"
_PROFILE_LABEL: Final = "x-k8s.io/cluster-profile"
_KUBECONFIG_KEY: Final = "Config"
_RELIST_SECONDS: Final = 600.0
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def control_plane_healthy(profile: Object) -> bool:
    """Tell whether the manager of the cluster reports a healthy control plane."""
    return is_true(profile, "ControlPlaneHealthy")


class ClusterInventoryProvider:
    """Engages the cluster of every ready ClusterProfile.

    `client` reaches the cluster with the profiles, and belongs to the caller. Exactly one of `access` and `consumer`
    gives the credentials. `ready` replaces the check of a healthy control plane; it gets the object and must not block.
    `namespace=None` means all namespaces; `label_selector` has the syntax of the API, and selects profiles.

    `properties` names the entries of `status.properties` that become attributes of the cluster, by default its ids. A
    change of these entries replaces the cluster; other entries are ignored. Raises ProviderError unless exactly one of
    `access` and `consumer` is given, or if `consumer` is no valid label.
    """

    def __init__(
        self,
        client: Client,
        *,
        access: AccessProviders | None = None,
        consumer: str | None = None,
        ready: Callable[[Object], bool] = control_plane_healthy,
        namespace: str | None = None,
        label_selector: str | None = None,
        properties: Collection[str] = CLUSTER_IDS,
    ) -> None:
        if isinstance(properties, str):
            raise ProviderError(f"properties={properties!r} is one text: write properties=({properties!r},)")
        if (access is None) == (consumer is None):
            raise ProviderError(
                "give exactly one of access (access providers and their plugins) and consumer (labelled Secrets) for"
                " the credentials of ClusterProfiles"
            )
        self._access = access
        self._properties = frozenset(properties)
        self._secrets = None if consumer is None else _Secrets(client, consumer=consumer, namespace=namespace)
        self._objects = ObjectBackedProvider(
            client,
            CLUSTER_PROFILES,
            plan=self._plan,
            what="ClusterProfile",
            ready=ready,
            namespace=namespace,
            label_selector=label_selector,
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "cluster-inventory"

    def has_synced(self) -> bool:
        """Tell whether the initial list of ClusterProfiles was read, and of Secrets if `consumer` is given."""
        return self._objects.has_synced() and (self._secrets is None or self._secrets.synced)

    async def run(self, fleet: Fleet) -> None:
        """Follow ClusterProfiles, and their Secrets if `consumer` is given, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._secrets is not None:
                tasks.create_task(self._secrets.run(self._objects), name="Secrets of ClusterProfiles")
            await self._objects.run(fleet)

    def _plan(self, profile: Object) -> Cluster | Keep | None:
        metadata = profile["metadata"]
        if metadata.get("deletionTimestamp"):
            return None
        namespace, name = metadata["namespace"], metadata["name"]
        if self._access is not None:
            config = self._access.config_of(profile)
        elif self._secrets is not None and self._secrets.synced:
            config = self._secrets.config_of(namespace, name)
        else:
            return KEEP
        return Cluster(cluster_name(namespace, name), config=config, attributes=self._attributes(profile))

    def _attributes(self, profile: Object) -> dict[str, str]:
        properties = section(profile, "status").get("properties")
        attributes: dict[str, str] = {}
        for entry in properties if isinstance(properties, list) else ():
            name, value = (entry.get("name"), entry.get("value")) if isinstance(entry, Mapping) else (None, None)
            if isinstance(name, str) and isinstance(value, str) and name in self._properties:
                attributes[name] = value
        return attributes


class _Secrets:
    """The Secrets of a consumer by profile, with a single watch."""

    def __init__(self, client: Client, *, consumer: str, namespace: str | None) -> None:
        if not _LABEL_VALUE.fullmatch(consumer):
            raise ProviderError(f"consumer {consumer!r} is no value of a label; Secrets for it cannot be labelled")
        selector = f"{_CONSUMER_LABEL}={consumer},{_PROFILE_LABEL}"
        self._secrets = Informer(
            client, SECRETS, namespace=namespace, label_selector=selector, relist_seconds=_RELIST_SECONDS
        )
        self._kubeconfigs = KubeconfigMemo()
        self._profile_of: dict[Key, Key] = {}
        self._secrets_of: dict[Key, dict[str, Object]] = {}

    @property
    def synced(self) -> bool:
        return self._secrets.synced.is_set()

    async def run(self, profiles: ObjectBackedProvider) -> None:
        """Follow the Secrets until cancelled, and wake their profiles."""

        def handle(event: Event) -> None:
            for namespace, name in self._observe(event.kind, event.object):
                profiles.wake(name, namespace=namespace)

        async def wake_all() -> None:
            await self._secrets.synced.wait()
            profiles.wake_all()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wake_all(), name="Secrets of ClusterProfiles were read")
            await self._secrets.run(handle)

    def config_of(self, namespace: str, profile: str) -> ClusterConfig:
        """Read the kubeconfig of a profile. Raises KubeconfigError without exactly one valid Secret."""
        secrets = self._secrets_of.get((namespace, profile), {})
        if len(secrets) != 1:
            candidates = f"the Secrets {', '.join(sorted(secrets))} are" if secrets else "no Secret is"
            raise KubeconfigError(f"{candidates} labelled for it in namespace {namespace}, where exactly one has to be")
        ((name, secret),) = secrets.items()
        try:
            return self._kubeconfigs.read(value_of(values_of(secret), _KUBECONFIG_KEY))
        except KubeconfigError as error:
            raise KubeconfigError(f"Secret {namespace}/{name}: {error}") from error

    def _observe(self, event: str, secret: Object) -> set[Key]:
        """Observe a Secret, and return its present and former profiles."""
        metadata = secret["metadata"]
        at = metadata["namespace"], metadata["name"]
        woken = set()
        former = self._profile_of.pop(at, None)
        if former is not None:
            woken.add(former)
            del self._secrets_of[former][at[1]]
            if not self._secrets_of[former]:
                del self._secrets_of[former]
        profile = section(metadata, "labels").get(_PROFILE_LABEL)
        if event != "DELETED" and isinstance(profile, str):
            current = self._profile_of[at] = at[0], profile
            self._secrets_of.setdefault(current, {})[at[1]] = secret
            woken.add(current)
        return woken
