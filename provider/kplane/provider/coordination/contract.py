"""The contract between a manager and what decides which clusters this process works on."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Coordinator", "Workplace"]


class Workplace(Protocol):
    """A manager's clusters, as its coordinator sees them."""

    def names(self) -> list[str]:
        """All clusters that are known, sorted; the local one, where there is one, among them."""

    async def wait_changed(self) -> None:
        """Return when clusters came or went since the last call; at once the first time."""

    def allow(self, name: str) -> None:
        """Let the work on a cluster begin; of no effect where it did, or the cluster is not known.

        A cluster that comes again has to be allowed again.
        """

    async def withdraw(self, name: str) -> None:
        """End the work on a cluster and return when nothing is at work any more; of no effect where nothing is."""


class Coordinator(Protocol):
    """Decides which clusters this process works on. Providers and lookups are not its business: they run everywhere."""

    async def run(self, workplace: Workplace) -> None:
        """Allow and withdraw until cancelled; in the end all is withdrawn, and then given back."""

    def may_work(self, cluster: str) -> bool:
        """Tell whether a reconcile may begin now; asked for each, so it looks at memory and the clock only."""

    def grace_seconds(self, cluster: str) -> float | None:
        """How long reconciles under way may take to end, now that work on a cluster does; None: as they like."""

    def require_read(self, cluster: str) -> None:
        """Raise ClusterNotOwned where this process has no business with a cluster; asked when it is looked up."""

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned where this process may not change a cluster now; asked before each write is sent.

        Returns how many seconds that write may take at most, None: as long as it likes. The local cluster is changed in
        reconciles of all others.
        """
