"""Coordination for one process: it works on all clusters."""

from __future__ import annotations

from typing import NoReturn

from kplane.provider.contracts import EngagementTarget

__all__ = ["Basic"]


class Basic:
    """Works on every cluster, always: for a process that runs alone."""

    async def run(self, target: EngagementTarget) -> NoReturn:
        """Allow every cluster that comes."""
        while True:
            await target.wait_changed()
            for name in target.names():
                target.allow(name)

    def may_work(self, cluster: str) -> bool:
        """Return True."""
        del cluster
        return True

    def grace_seconds(self, cluster: str) -> float | None:
        """Return None: no limit."""
        del cluster
        return None

    def require_read(self, cluster: str) -> None:
        """Raise nothing."""

    def require_write(self, cluster: str) -> float | None:
        """Raise nothing, and set no limit."""
        del cluster
        return None
