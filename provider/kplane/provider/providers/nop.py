"""Provider without clusters, for a manager whose controllers work on the local cluster alone."""

from __future__ import annotations

from kplane.provider.contracts import Fleet

__all__ = ["NopProvider"]


class NopProvider:
    """Finds no clusters. Sources do not watch the local cluster by default, as with upstream's `providers/nop`."""

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "nop"

    async def run(self, fleet: Fleet) -> None:
        """Return at once."""
