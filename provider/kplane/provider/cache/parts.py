"""The parts of an informer: one for each namespace of its scope, or one for all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, NoReturn

from kplane.provider.cache.feed import Feed
from kplane.provider.cache.mirror import Mirror
from kplane.provider.cache.namespaces import Namespaces
from kplane.provider.cache.scope import CacheScope

__all__ = ["Part", "Parts"]


class Part(NamedTuple):
    """A feed and its mirror, for the objects of a namespace or of all namespaces."""

    mirror: Mirror
    feed: Feed


class Parts:
    """Runs the parts of a scope, and starts and stops parts when its namespaces change.

    `follow` makes a part for a scope that a single list and watch can read. `changed` is called at the start of a scope
    with changing namespaces, and whenever a part has left. `name` is the name of the cluster, for task names.
    """

    def __init__(
        self, scope: CacheScope, follow: Callable[[CacheScope], Part], *, changed: Callable[[], None], name: str
    ) -> None:
        self._scope = scope
        self._follow = follow
        self._changed = changed
        self._name = name
        self._parts: dict[str | None, Part] = {}
        self._ended_restarts: Counter[str] = Counter()
        if scope.is_namespaced:
            self._parts.update((namespace, follow(scope.part(namespace))) for namespace in scope.namespaces)
        else:
            self._parts[None] = follow(scope)

    def __iter__(self) -> Iterator[Part]:
        """Return the present parts."""
        return iter(tuple(self._parts.values()))

    @property
    def synced(self) -> bool:
        """Whether the first list of every part is complete."""
        return all(part.mirror.synced for part in self._parts.values())

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The feeds of all parts."""
        return tuple(part.feed for part in self._parts.values())

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of watches that ended, by reason, including watches of parts that have left."""
        return sum((part.feed.restarts for part in self._parts.values()), self._ended_restarts.copy())

    def of(self, namespace: str | None) -> Part | None:
        """Return the part with the objects of a namespace; None if several parts or no part has them."""
        return self._parts.get(None) or self._parts.get(namespace)

    def reset(self) -> None:
        """Forget the state of all parts, so that the next `run` begins with new lists."""
        for part in self._parts.values():
            part.mirror.reset()
            part.feed.reset()

    async def run(self) -> NoReturn:
        """Run all feeds until cancelled."""
        namespaces = self._scope.namespaces
        if len(self._parts) == 1 and not isinstance(namespaces, Namespaces):
            (part,) = self._parts.values()
            await part.feed.run()
        async with asyncio.TaskGroup() as group:
            if isinstance(namespaces, Namespaces):
                await self._run_changing(group, namespaces)
            for part in self._parts.values():
                _ = self._start(group, part)
        raise AssertionError

    async def _run_changing(self, group: asyncio.TaskGroup, namespaces: Namespaces) -> NoReturn:
        tasks: dict[str | None, asyncio.Task[NoReturn]] = {}

        def add(namespace: str) -> None:
            part = self._parts.get(namespace) or self._follow(self._scope.part(namespace))
            self._parts[namespace] = part
            tasks[namespace] = self._start(group, part)

        def remove(namespace: str) -> None:
            # The group awaits the end of the task. A cancelled task does not touch the objects.
            _ = tasks.pop(namespace).cancel()
            self._remove(namespace)

        # The scope may have changed since the last run.
        for namespace in [name for name in self._parts if name not in namespaces]:
            self._remove(namespace)
        for namespace in namespaces:
            add(namespace)
        self._changed()
        unfollow = namespaces.follow(add, remove)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            unfollow()
        raise AssertionError

    def _start(self, group: asyncio.TaskGroup, part: Part) -> asyncio.Task[NoReturn]:
        return group.create_task(part.feed.run(), name=f"{self._name}: watch {part.feed}".removeprefix(": "))

    def _remove(self, namespace: str | None) -> None:
        part = self._parts.pop(namespace)
        self._ended_restarts.update(part.feed.restarts)
        part.mirror.clear()
        self._changed()
