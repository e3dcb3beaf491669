"""One process works on all clusters."""

from __future__ import annotations

from typing import NoReturn

from kplane.provider.contracts import EngagementTarget

__all__ = ["Basic"]


class Basic:
    """For one process that runs alone: everything is its business, always."""

    async def run(self, target: EngagementTarget) -> NoReturn:
        """Allow every cluster that comes."""
        while True:
            await target.wait_changed()
            for name in target.names():
                target.allow(name)

    def may_work(self, cluster: str) -> bool:
        """Always."""
        del cluster
        return True

    def grace_seconds(self, cluster: str) -> float | None:
        """As long as they like."""
        del cluster
        return None

    def require_read(self, cluster: str) -> None:
        """Raise nothing."""

    def require_write(self, cluster: str) -> float | None:
        """Raise nothing; a write may take as long as it likes."""
        del cluster
        return None
