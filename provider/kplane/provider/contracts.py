"""Protocols between a manager and what it runs: awares, providers, runnables, coordinators, controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.engagement import Engagement

__all__ = [
    "Aware",
    "Buildable",
    "ControllerHost",
    "Coordinator",
    "EngagementTarget",
    "Fleet",
    "HasSynced",
    "LocalAware",
    "LocalWatcher",
    "Provider",
    "Runnable",
]


@runtime_checkable
class Aware(Protocol):
    """Works on every cluster of a fleet."""

    async def engage(self, engagement: Engagement) -> None:
        """Start to work on `engagement.cluster`, and return promptly.

        Use `engagement.spawn` for work and `engagement.on_close` for cleanup. If `engage` raises, the manager closes
        the engagement and retries after a backoff, with a new engagement. Other clusters are not affected.
        """


@runtime_checkable
class LocalAware(Protocol):
    """Works on the manager's own cluster, besides or instead of the clusters of a fleet."""

    async def engage_local(self, engagement: Engagement) -> None:
        """Start to work on the local cluster, as `Aware.engage`."""


@runtime_checkable
class LocalWatcher(Protocol):
    """Watches the manager's own cluster, even while another process works on that cluster."""

    async def watch_local(self, engagement: Engagement) -> None:
        """Start to watch the local cluster, as `Aware.engage`; work on the local cluster waits for `engage_local`."""


@runtime_checkable
class Runnable(Protocol):
    """Runs for as long as a manager does."""

    async def run(self) -> None:
        """Run until cancelled. The manager restarts a failed run after a backoff."""


class Fleet(Protocol):
    """Fleet to which a provider adds clusters."""

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Make this the cluster of its name, and return when it is.

        If it continues the present cluster with renewed credentials, the engagement goes on. Otherwise the present
        engagement is closed before the new one begins.
        """

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster, and return after its end. An unknown name is no error."""

    def get(self, name: str) -> Cluster:
        """Return the cluster of that name. Raises ClusterNotFound, or ClusterNotReady while it is being engaged."""

    def names(self) -> list[str]:
        """Return the names of the provider's clusters, sorted."""


class Provider(Protocol):
    """Finds the clusters of a fleet."""

    @property
    def name(self) -> str:
        """Name for logs and metrics."""

    async def run(self, fleet: Fleet) -> None:
        """Keep `fleet` up to date with every cluster that comes, changes and goes, until cancelled.

        The manager restarts a failed run; engaged clusters stay engaged meanwhile. See also `HasSynced`.
        """


@runtime_checkable
class HasSynced(Protocol):
    """Reports whether a provider has synced; a manager with such a provider is not ready before."""

    def has_synced(self) -> bool:
        """Tell whether the initial list of clusters was read; client-go's HasSynced."""


class EngagementTarget(Protocol):
    """The clusters of a manager, for a coordinator to allow and withdraw."""

    def names(self) -> list[str]:
        """Return the names of all known clusters, sorted; the local cluster, if there is one, is among them."""

    async def wait_changed(self) -> None:
        """Return when clusters have come or gone since the last call; the first call returns at once."""

    def allow(self, name: str) -> None:
        """Let the work on a cluster begin. Has no effect on begun work or an unknown cluster.

        A cluster that was removed and added again must be allowed again.
        """

    async def withdraw(self, name: str) -> None:
        """End the work on a cluster, and return after its end. Has no effect without work."""

    def observe_local(self) -> None:
        """Let each `LocalWatcher` watch the local cluster, whether or not this process may work on it."""

    async def ignore_local(self) -> None:
        """End the watches of `observe_local`, and return after their end."""


class Coordinator(Protocol):
    """Decides which clusters this process works on. Providers and lookups run in every process."""

    async def run(self, target: EngagementTarget) -> None:
        """Allow and withdraw clusters until cancelled; finally withdraw all clusters, and then release the Leases."""

    def may_work(self, cluster: str) -> bool:
        """Tell whether a reconcile may begin now. Called for each reconcile, so it must not make API calls."""

    def grace_seconds(self, cluster: str) -> float | None:
        """Return the seconds that running reconciles have to end when work is withdrawn; None is no limit."""

    def require_read(self, cluster: str) -> None:
        """Raise ClusterNotOwned if this process must not look a cluster up."""

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned if this process must not write to a cluster now; called before each write.

        Returns the seconds that the write may take; None is no limit. Reconciles of any cluster may write to the local
        cluster.
        """


class Buildable(Protocol):
    """Builder of a controller."""

    @property
    def pending(self) -> bool:
        """Whether `build` was not called yet."""


class ControllerHost(Protocol):
    """The part of a manager that its controllers use."""

    @property
    def workers(self) -> int:
        """Default number of concurrent reconciles of a controller."""

    @property
    def reconcile_timeout_seconds(self) -> float:
        """Default timeout of a reconcile."""

    @property
    def scope(self) -> str | None:
        """Name of the only cluster that its controllers watch; None for all clusters."""

    @property
    def group_kind_concurrency(self) -> Mapping[str, int]:
        """Number of concurrent reconciles by the kind of `for_`, such as `{"ReplicaSet.apps": 4}`."""

    @property
    def coordinator(self) -> Coordinator:
        """Decides which clusters this process works on."""

    @property
    def provider(self) -> Provider | None:
        """Provider of the clusters; with None there is only the local cluster."""

    @property
    def clusters(self) -> Fleet:
        """All clusters."""

    def get_cluster(self, name: str) -> Cluster:
        """Return a cluster by its name. Raises ClusterNotFound, ClusterNotReady and ClusterNotOwned."""

    def expect(self, builder: Buildable) -> None:
        """Refuse to run while the controller of `builder` is not built."""

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """Engage and run a component."""
