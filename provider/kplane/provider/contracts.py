"""What a manager brings together: who works on clusters, and who finds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.engagement import Engagement

__all__ = ["Aware", "ControllerHost", "Coordinator", "EngagementTarget", "Fleet", "LocalAware", "Provider", "Runnable"]


@runtime_checkable
class Aware(Protocol):
    """Something that works on every cluster of a fleet."""

    async def engage(self, engagement: Engagement) -> None:
        """Begin to work on `engagement.cluster`, and return promptly.

        Work goes to `engagement.spawn`, what must be undone to `engagement.on_close`. If this raises, all of that is
        undone and it is called again, with growing delays, with a new engagement; other clusters do not notice.
        """


@runtime_checkable
class LocalAware(Protocol):
    """Something that works on the manager's own cluster, besides or instead of those of a fleet."""

    async def engage_local(self, engagement: Engagement) -> None:
        """Begin to work on the local cluster; as `Aware.engage`."""


@runtime_checkable
class Runnable(Protocol):
    """Something that runs for as long as a manager does."""

    async def run(self) -> None:
        """Run until cancelled; what fails is run again, with growing delays."""


class Fleet(Protocol):
    """What a provider tells of its clusters."""

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Make this the cluster of its name, and return when it is.

        If it continues the present one, with credentials that were renewed, the engagement goes on. Otherwise that
        is closed, which is awaited, before the new one begins.
        """

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster and return when nothing of it is left; an unknown name is no error."""

    def get(self, name: str) -> Cluster:
        """The cluster of that name; raises ClusterNotFound, or ClusterNotReady while it is being engaged."""

    def names(self) -> list[str]:
        """Names of the provider's clusters, sorted."""


class Provider(Protocol):
    """Something that knows the clusters of a fleet."""

    @property
    def name(self) -> str:
        """For logs and metrics."""

    async def run(self, fleet: Fleet) -> None:
        """Tell `fleet` about every cluster that comes, changes and goes, until cancelled.

        It is run again when it fails; clusters that are engaged stay so meanwhile.
        """


class EngagementTarget(Protocol):
    """A manager's clusters, as its coordinator sees them."""

    def names(self) -> list[str]:
        """All clusters that are known, sorted; the local one, if there is one, among them."""

    async def wait_changed(self) -> None:
        """Return when clusters came or went since the last call; at once the first time."""

    def allow(self, name: str) -> None:
        """Let the work on a cluster begin; without effect if it did, or the cluster is not known.

        A cluster that comes again has to be allowed again.
        """

    async def withdraw(self, name: str) -> None:
        """End the work on a cluster and return when nothing is at work any more; without effect if nothing is."""


class Coordinator(Protocol):
    """Decides which clusters this process works on. Providers and lookups are not its business: they run everywhere."""

    async def run(self, target: EngagementTarget) -> None:
        """Allow and withdraw until cancelled; in the end all is withdrawn, and then released."""

    def may_work(self, cluster: str) -> bool:
        """Tell whether a reconcile may begin now; asked for each, so it looks at memory and the clock only."""

    def grace_seconds(self, cluster: str) -> float | None:
        """How long reconciles under way may take to end, now that work on a cluster does; None: as they like."""

    def require_read(self, cluster: str) -> None:
        """Raise ClusterNotOwned if this process has no business with a cluster; asked when it is looked up."""

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned if this process may not change a cluster now; asked before each write is sent.

        Returns how many seconds that write may take at most, None: as long as it likes. The local cluster is changed in
        reconciles of all others.
        """


class ControllerHost(Protocol):
    """What controllers need of the manager that runs them."""

    @property
    def max_concurrent(self) -> int:
        """How many reconciles of a controller run at once by default."""

    @property
    def group_kind_concurrency(self) -> Mapping[str, int]:
        """How many reconciles run at once by the kind of `for_`, such as `{"ReplicaSet.apps": 4}`."""

    @property
    def coordinator(self) -> Coordinator:
        """Decides which clusters this process works on."""

    @property
    def provider(self) -> Provider | None:
        """Finds the clusters; None: there is only the local cluster."""

    @property
    def clusters(self) -> Fleet:
        """All clusters."""

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """Engage and run what is added."""
