"""What a manager brings together: who works on clusters, and who finds them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kplane.provider.fleet.engagement import Engagement
from kplane.provider.fleet.view import Fleet

__all__ = ["Aware", "LocalAware", "Provider", "Runnable"]


@runtime_checkable
class Aware(Protocol):
    """Something that works on every cluster of a fleet."""

    async def engage(self, engagement: Engagement) -> None:
        """Begin to work on `engagement.cluster`, and return promptly.

        Work goes to `engagement.spawn`, what must be undone to `engagement.on_close`. Where this raises, all of that is
        undone and it is called again, later and later, with a new engagement; other clusters do not notice.
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
        """Run until cancelled; what fails is run again, later and later."""


class Provider(Protocol):
    """Something that knows the clusters of a fleet."""

    @property
    def name(self) -> str:
        """For logs and metrics."""

    async def run(self, fleet: Fleet) -> None:
        """Tell `fleet` about every cluster that comes, changes and goes, until cancelled.

        It is run again when it fails; clusters that are engaged stay so meanwhile.
        """
