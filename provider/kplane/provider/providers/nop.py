"""No clusters at all: for a manager whose controllers work on the local cluster alone."""

from __future__ import annotations

from kplane.provider.contracts import Fleet

__all__ = ["NopProvider"]


class NopProvider:
    """Finds nothing, and needs nothing.

    It is good if a manager has to have a provider: sources are then off for the local cluster by default, and every
    name is unknown. As upstream's `providers/nop`.
    """

    @property
    def name(self) -> str:
        """For logs and metrics."""
        return "nop"

    async def run(self, fleet: Fleet) -> None:
        """Return at once."""
