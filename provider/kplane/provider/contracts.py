"""Protocols between a manager and its components: awares, providers, runnables, coordinators, controllers."""

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
    """Runs while a manager runs."""

    async def run(self) -> None:
        """Run until cancelled. The manager restarts a failed run after a backoff."""


class Fleet(Protocol):
    """Set of engaged clusters, which a provider keeps up to date."""

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Add a cluster, or replace the cluster of its name, and return after the change.

        If the new cluster continues the present cluster with renewed credentials, the engagement stays. Otherwise the
        present engagement is closed before the new engagement begins.
        """

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster, and return after its end. Ignores an unknown name."""

    def get(self, name: str) -> Cluster:
        """Return the cluster of that name. Raises ClusterNotFound, or ClusterNotReady while it is being engaged."""
        ...

    def names(self) -> list[str]:
        """Return the names of the provider's clusters, sorted."""
        ...


class Provider(Protocol):
    """Finds the clusters of a fleet."""

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        ...

    async def run(self, fleet: Fleet) -> None:
        """Keep `fleet` up to date with all added, changed and removed clusters, until cancelled.

        The manager restarts a failed run; engaged clusters stay engaged meanwhile. See also `HasSynced`.
        """


@runtime_checkable
class HasSynced(Protocol):
    """Reports whether a provider has synced. A manager with such a provider is not ready until then."""

    def has_synced(self) -> bool:
        """Tell whether the provider has read its initial list of clusters, as client-go's HasSynced."""
        ...


class EngagementTarget(Protocol):
    """The clusters of a manager, for a coordinator to allow and withdraw."""

    def names(self) -> list[str]:
        """Return the names of all clusters of the fleet, sorted, and the name of the local cluster if there is one."""
        ...

    async def wait_changed(self) -> None:
        """Wait until clusters were added or removed since the last call. The first call returns at once."""

    def allow(self, name: str) -> None:
        """Let the work on a cluster begin. Does nothing if the work has begun, or for an unknown cluster.

        A cluster that was removed and added again must be allowed again.
        """

    async def withdraw(self, name: str) -> None:
        """End the work on a cluster, and return after its end. Does nothing without work."""

    def observe_local(self) -> None:
        """Let each `LocalWatcher` watch the local cluster, whether or not this process may work on it."""

    async def ignore_local(self) -> None:
        """End the watches of `observe_local`, and return after their end."""


class Coordinator(Protocol):
    """Decides which clusters this process works on. Providers and lookups run in every process."""

    async def run(self, target: EngagementTarget) -> None:
        """Allow and withdraw clusters until cancelled; finally withdraw all clusters, and then release the Leases."""

    def may_work(self, cluster: str) -> bool:
        """Tell whether a reconcile may begin now. Each reconcile calls this method, so it must make no API calls."""
        ...

    def grace_seconds(self, cluster: str) -> float | None:
        """Return the seconds in which running reconciles must end when work is withdrawn; None is no limit."""

    def require_read(self, cluster: str) -> None:
        """Raise ClusterNotOwned if this process must not look up a cluster."""

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned if this process must not write to a cluster now. The client calls it before each write.

        Returns the seconds that the write may take; None is no limit. Reconciles of any cluster may write to the local
        cluster.
        """


class Buildable(Protocol):
    """Builder of a controller, which a manager waits for."""

    @property
    def pending(self) -> bool:
        """Whether `build` is still to be called."""
        ...


class ControllerHost(Protocol):
    """The part of a manager that its controllers use."""

    @property
    def workers(self) -> int:
        """Default number of concurrent reconciles of a controller."""
        ...

    @property
    def reconcile_timeout_seconds(self) -> float:
        """Default timeout of a reconcile, in seconds."""
        ...

    @property
    def scope(self) -> str | None:
        """Name of the only cluster that its controllers watch; None for all clusters."""

    @property
    def group_kind_concurrency(self) -> Mapping[str, int]:
        """Number of concurrent reconciles by the kind of `for_`, such as `{"ReplicaSet.apps": 4}`."""
        ...

    @property
    def coordinator(self) -> Coordinator:
        """Coordinator that decides which clusters this process works on."""
        ...

    @property
    def provider(self) -> Provider | None:
        """Provider of the clusters; with None there is only the local cluster."""

    @property
    def clusters(self) -> Fleet:
        """All clusters."""
        ...

    def get_cluster(self, name: str) -> Cluster:
        """Return a cluster by its name. Raises ClusterNotFound, ClusterNotReady and ClusterNotOwned."""
        ...

    def expect(self, builder: Buildable) -> None:
        """Register a builder. The manager refuses to run until the builder has built its controller."""

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """Engage and run a component."""
