"""Several providers as one: their clusters side by side, under prefixed names."""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.provider.aio.cancellation import complete, end_tasks
from kplane.provider.aio.running import keep_running
from kplane.provider.contracts import Fleet, Provider
from kplane.provider.errors import ProviderError
from kplane.provider.fleet.view import FleetView

__all__ = ["MultiProvider"]


class _Member:
    """A provider, and the task that runs it."""

    def __init__(self, provider: Provider) -> None:
        self.provider: Final = provider
        self.task: asyncio.Task[None] | None = None


class MultiProvider:
    """Runs providers next to each other: the cluster `island` of the one added as `cloud1` is `cloud1#island`.

    Names are split at the first `separator`, so that a multi provider may be a member of another one. Members are added
    before and while it runs, and removed at any time, and their clusters with them. One that fails is run again, later
    and later; its clusters stay, and the other members do not notice. One that has told all that it knows stays too.
    What members need they need here as well. As upstream's `providers/multi`.
    """

    def __init__(self, *, separator: str = "#") -> None:
        if not separator:
            raise ProviderError("the separator between provider and cluster is empty; give one, such as '#'")
        self._separator = separator
        self._members: dict[str, _Member] = {}
        self._running: tuple[Fleet, asyncio.TaskGroup] | None = None

    @property
    def name(self) -> str:
        """For logs and metrics."""
        return "multi"

    def provider_names(self) -> list[str]:
        """Names of the members, sorted."""
        return sorted(self._members)

    def get_provider(self, name: str) -> Provider:
        """The provider that was added under this name; raises ProviderError if there is none."""
        if name not in self._members:
            raise ProviderError(f"there is no provider {name!r}")
        return self._members[name].provider

    def split(self, cluster: str) -> tuple[str, str]:
        """A cluster's provider, and its name there. Raises ProviderError if the name has no separator."""
        provider, separator, name = cluster.partition(self._separator)
        if not separator:
            raise ProviderError(f"{cluster!r} names no provider: it has no {self._separator!r}")
        return provider, name

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a member and, if this runs, run it. Raises ProviderError if the name is taken or cannot be one."""
        if not name or self._separator in name:
            raise ProviderError(f"a provider cannot be called {name!r}: it needs a name without {self._separator!r}")
        if name in self._members:
            raise ProviderError(f"there is a provider {name!r} already: remove it first")
        self._members[name] = _Member(provider)
        if self._running is not None:
            self._start(name, *self._running)

    async def remove_provider(self, name: str) -> None:
        """Stop a member and remove its clusters; returns when nothing of it is left. An unknown name is no error."""
        member = self._members.get(name)
        if member is None:
            return
        if member.task is not None:
            await end_tasks([member.task])
        if self._running is not None:
            view = self._view(name, member, self._running[0])
            await complete(map(view.remove, view.names()))
        # Only now may the name be taken again: what is removed must not be somebody else's.
        if self._members.get(name) is member:
            del self._members[name]

    async def run(self, fleet: Fleet) -> None:
        """Run the members until cancelled. Raises ProviderError if it runs already."""
        if self._running is not None:
            raise ProviderError("this provider runs already: a second fleet needs a second provider")
        async with asyncio.TaskGroup() as tasks:
            self._running = fleet, tasks
            try:
                for name in self._members:
                    self._start(name, fleet, tasks)
                await asyncio.Event().wait()
            finally:
                # Before the members have ended: nobody can be started any more.
                self._running = None

    def _start(self, name: str, fleet: Fleet, tasks: asyncio.TaskGroup) -> None:
        member, title = self._members[name], f"provider {name}"
        view = self._view(name, member, fleet)
        member.task = tasks.create_task(keep_running(title, lambda: member.provider.run(view)), name=title)

    def _view(self, name: str, member: _Member, fleet: Fleet) -> FleetView:
        return FleetView(fleet, provider=member.provider, prefix=f"{name}{self._separator}")
