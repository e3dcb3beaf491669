"""Provider that joins several providers, with prefixed cluster names."""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.provider.aio.cancellation import complete, end_tasks
from kplane.provider.aio.running import keep_running
from kplane.provider.contracts import Fleet, HasSynced, Provider
from kplane.provider.errors import ProviderError
from kplane.provider.fleet.view import FleetView

__all__ = ["MultiProvider"]


class _Member:
    """A provider, and the task of its `run`."""

    def __init__(self, provider: Provider) -> None:
        self.provider: Final = provider
        self.task: asyncio.Task[None] | None = None


class MultiProvider:
    """Runs providers side by side: cluster `island` of the provider added as `cloud1` is `cloud1#island`.

    Names are split at the first `separator`, so that a MultiProvider may be a member of another MultiProvider. Members
    can be added and removed at any time; the clusters of a removed member are removed. A member that fails is restarted
    with growing delays; its clusters stay, and other members continue. Upstream's `providers/multi`.
    """

    def __init__(self, *, separator: str = "#") -> None:
        if not separator:
            raise ProviderError("the separator between provider and cluster is empty; give one, such as '#'")
        self._separator = separator
        self._members: dict[str, _Member] = {}
        self._running: tuple[Fleet, asyncio.TaskGroup] | None = None

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "multi"

    def provider_names(self) -> list[str]:
        """Return the names of the members, sorted."""
        return sorted(self._members)

    def get_provider(self, name: str) -> Provider:
        """Return the provider that was added under this name. Raises ProviderError for an unknown name."""
        if name not in self._members:
            raise ProviderError(f"there is no provider {name!r}")
        return self._members[name].provider

    def split(self, cluster: str) -> tuple[str, str]:
        """Split a cluster's name into provider and name. Raises ProviderError for a name without separator."""
        provider, separator, name = cluster.partition(self._separator)
        if not separator:
            raise ProviderError(f"{cluster!r} names no provider: it has no {self._separator!r}")
        return provider, name

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a member, and start it while `run` runs. Raises ProviderError if the name is taken or invalid."""
        if not name or self._separator in name:
            raise ProviderError(f"a provider cannot be called {name!r}: it needs a name without {self._separator!r}")
        if name in self._members:
            raise ProviderError(f"there is a provider {name!r} already: remove it first")
        self._members[name] = _Member(provider)
        if self._running is not None:
            self._start(name, *self._running)

    async def remove_provider(self, name: str) -> None:
        """Stop a member, and return when its clusters are removed. Ignores an unknown name."""
        member = self._members.get(name)
        if member is None:
            return
        if member.task is not None:
            await end_tasks([member.task])
        if self._running is not None:
            view = self._view(name, member, self._running[0])
            await complete(map(view.remove, view.names()))
        # Release the name last: this call must not remove the clusters of a new member of the same name.
        if self._members.get(name) is member:
            del self._members[name]

    def has_synced(self) -> bool:
        """Tell whether each member with `has_synced` has found its clusters."""
        providers = (member.provider for member in self._members.values())
        return all(provider.has_synced() for provider in providers if isinstance(provider, HasSynced))

    async def run(self, fleet: Fleet) -> None:
        """Run the members until cancelled. Raises ProviderError if the provider runs already."""
        if self._running is not None:
            raise ProviderError("this provider runs already: a second fleet needs a second provider")
        async with asyncio.TaskGroup() as tasks:
            self._running = fleet, tasks
            try:
                for name in self._members:
                    self._start(name, fleet, tasks)
                await asyncio.Event().wait()
            finally:
                # Reset before the members have ended: the task group that is ending can start no member.
                self._running = None

    def _start(self, name: str, fleet: Fleet, tasks: asyncio.TaskGroup) -> None:
        member, title = self._members[name], f"provider {name}"
        view = self._view(name, member, fleet)
        member.task = tasks.create_task(keep_running(title, lambda: member.provider.run(view)), name=title)

    def _view(self, name: str, member: _Member, fleet: Fleet) -> FleetView:
        return FleetView(fleet, provider=member.provider, prefix=f"{name}{self._separator}")
