"""Tells nobody: for sources whose objects have no place for what becomes of instances."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from mcm.report import Reason
from provider import Cluster

__all__ = ["Silence"]


class Silence:
    """Stands in for `Reports`, and writes nothing."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """There is nothing to run."""
        yield

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        """See `Witness.announce`."""

    def say(self, name: str, reason: Reason, *, message: str = "") -> None:
        """See `Witness.say`."""

    def say_failure(self, cluster: Cluster, message: str) -> None:
        """See `Witness.say_failure`."""

    async def end(self, name: str) -> None:
        """See `Witness.end`."""
