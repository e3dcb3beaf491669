"""The two sides of a manager: who follows clusters, and who finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from provider.engagement import Engagement

if TYPE_CHECKING:
    from provider.clusters import Clusters

__all__ = ["Aware", "Provider"]


class Aware(Protocol):
    """Something that works on every cluster of a fleet."""

    async def engage(self, engagement: Engagement) -> None:
        """Begin to work on `engagement.cluster`, and return promptly.

        Work goes to `engagement.spawn`, what must be undone to `engagement.on_close`. Where this raises, all of that is
        undone and it is called again, later and later, with a new engagement; other clusters do not notice.
        """


class Provider(Protocol):
    """Something that knows the clusters of a fleet."""

    @property
    def name(self) -> str:
        """For logs."""

    async def run(self, clusters: Clusters) -> None:
        """Tell `clusters` about every cluster that comes, changes and goes, until cancelled.

        It is run again when it fails; clusters that are engaged stay so meanwhile.
        """
