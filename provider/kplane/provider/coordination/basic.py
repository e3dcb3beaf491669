"""Coordinator for a process that runs alone, and works on all clusters."""

from __future__ import annotations

from typing import NoReturn

from kplane.provider.contracts import EngagementTarget

__all__ = ["Basic"]


class Basic:
    """Allows work on every cluster at all times, for a process that runs alone."""

    async def run(self, target: EngagementTarget) -> NoReturn:
        """Allow every cluster that the fleet engages, until cancelled."""
        while True:
            await target.wait_changed()
            for name in target.names():
                target.allow(name)

    def may_work(self, cluster: str) -> bool:
        """Return True: this process works on every cluster."""
        del cluster
        return True

    def grace_seconds(self, cluster: str) -> float | None:
        """Return None: work on a cluster has no time limit."""
        del cluster
        return None

    def require_read(self, cluster: str) -> None:
        """Permit every read."""

    def require_write(self, cluster: str) -> float | None:
        """Permit every write, and return None: no time limit."""
        del cluster
        return None
