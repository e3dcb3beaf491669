"""All fences of a fleet, with their clusters and holders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kplane.provider.aio.cancellation import asked_to_end
from kplane.provider.client.client import Client, Object
from kplane.provider.cluster.context import title_of
from kplane.provider.contracts import EngagementTarget
from kplane.provider.coordination.fence import Counts, Fence
from kplane.provider.coordination.lease import Lease, LeaseTimings
from kplane.provider.coordination.peers import PART_OF, PREFIX_LABEL
from kplane.provider.coordination.shards import Layout, ShardTimings
from kplane.provider.errors import ProviderError

__all__ = ["Fences"]

log: Final = logging.getLogger(__name__)

_FENCE_LABEL: Final = "mcr.sigs.k8s.io/fence"
_AT_ONCE: Final = 32
"""Maximum number of concurrent acquisitions and releases: each needs a connection."""


class _Section:
    """A fence, and the clusters behind it."""

    def __init__(self, fence: Fence) -> None:
        self.fence: Final = fence
        self.names: set[str] = set()
        self.begun: set[str] = set()
        """Clusters with work that may be running."""
        self.leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks that end the work on begun clusters that have left the fleet."""
        self.task: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> bool:
        """Whether this process may hold the fence, or have work behind it."""
        return self.task is not None or bool(self.begun) or bool(self.leaving)


class Fences:
    """All fences, held by this process or another.

    A fence has a task only while this process wants it or works behind it.

    `unused` is the function of `Sharded`. `known` returns a Lease as last observed by the watch. Call `see` for each
    event of the watch, and `watched` after the initial list. `changed` is called when a new decision
    is due, `taken` when this process has acquired a fence, and `left` when the work behind a fence has ended. Without
    `target` there are no fences. A cluster whose work cannot begin blocks no other cluster; each `arrange` retries.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        identity: str,
        layout: Layout,
        timings: ShardTimings,
        counts: Counts,
        target: EngagementTarget | None,
        known: Callable[[str], Object | None],
        unused: Callable[[str], bool],
        changed: Callable[[], None],
        taken: Callable[[], None],
        left: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._layout = layout
        self._timings = timings
        self._counts = counts
        self._target = target
        self._known = known
        self._unused = unused
        self._changed = changed
        self._taken = taken
        self._left = left
        self._now = now
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._watched_since: float | None = None
        self._deleted_at: dict[str, float] = {}
        """Time of deletion of Leases by name, including Leases of clusters that are not in the fleet yet."""
        self._names: list[str] = []
        self._keys: list[str] = []
        self._key_of: dict[str, str] = {}
        self._sections: dict[str, _Section] = {}
        self._by_lease: dict[str, _Section] = {}
        self._all: tuple[Fence, ...] = ()

    @property
    def clusters(self) -> int:
        """Number of clusters that this process works on."""
        return sum(len(section.begun) for section in self._sections.values())

    def all(self) -> tuple[Fence, ...]:
        """Return every fence."""
        return self._all

    def knows(self, lease: str) -> bool:
        """Return whether a fence has a Lease of that name."""
        return lease in self._by_lease

    def keys(self) -> list[str]:
        """Return the keys to divide, without keys of clusters that have left, which this process may still hold."""
        return self._keys

    def working_keys(self) -> list[str]:
        """Return the keys of the fences that this process works behind."""
        return [key for key, section in self._sections.items() if section.fence.working]

    def of(self, cluster: str) -> Fence | None:
        """Return the fence of a cluster, or None."""
        section = self._sections.get(self._key_of.get(cluster) or self._layout.key_of(cluster))
        return section.fence if section is not None else None

    def holders(self) -> dict[str, str]:
        """Return the holder of each fence by key; free and expired fences are omitted."""
        now = self._now()
        holders: dict[str, str] = {}
        for key, section in self._sections.items():
            lease = section.fence.lease
            if section.fence.working:
                holders[key] = self._identity
            elif lease.holder is not None and now < max(lease.free_at, lease.expires_at):
                holders[key] = lease.holder
        return holders

    def silent_holders(self, *, seen_at: Callable[[str], float]) -> set[str]:
        """Return other holders that let a fence expire and were not seen in time, and so are gone.

        A dead process is thus replaced when its fences expire, although a live peer may be silent for longer.
        """
        now = self._now()
        seen_before = now - self._timings.peer_renew_seconds - self._timings.probe_seconds
        return {
            holder
            for section in self._sections.values()
            if (holder := section.fence.lease.holder) is not None
            and holder != self._identity
            and section.fence.lease.free_at <= now
            and seen_at(holder) < seen_before
        }

    def next_change_at(self) -> float:
        """Return the time at which the next fence of another process expires without a renewal."""
        now = self._now()
        leases = (section.fence.lease for section in self._sections.values() if not section.fence.working)
        return min((lease.free_at for lease in leases if lease.free_at > now), default=float("inf"))

    def overrun_at(self) -> float:
        """Return the earliest time by which work behind a fence must have ended. Safe to call in another thread."""
        return min((fence.overrun_at for fence in self._all), default=float("inf"))

    def watched(self) -> None:
        """Start to treat a Lease that the watch does not have as missing: the initial list is complete."""
        self._watched_since = self._now()

    def see(self, event: str, lease: Object) -> bool:
        """Observe an event of the watch; return whether a fence has changed its holder."""
        name, deleted = lease["metadata"]["name"], event == "DELETED"
        if deleted:
            # The former holder has stopped when its Lease would have expired.
            since = self._now() - self._timings.duration_seconds
            self._deleted_at = {other: at for other, at in self._deleted_at.items() if at > since} | {name: self._now()}
        section = self._by_lease.get(name)
        if section is None:
            return False
        fence = section.fence
        before = fence.lease.holder
        fence.lease.observe(lease, deleted=deleted)
        holder = fence.lease.holder
        if holder != (self._identity if fence.working else before):
            fence.look()
        return holder != before

    def arrange(self) -> None:
        """Create a fence for each key, and begin all allowed work. Raises the failure of a fence."""
        if self._target is None:
            return
        for section in self._sections.values():
            if section.task is not None and section.task.done():
                task, section.task = section.task, None
                task.result()
        names = self._target.names()
        if names != self._names or not self._sections or self._may_forget():
            self._group(names)
        for section in self._sections.values():
            if section.fence.may_begin:
                self._begin(section)

    def want(self, keys: set[str]) -> None:
        """Acquire exactly these fences, and release other fences."""
        for key, section in self._sections.items():
            wanted = key in keys
            section.fence.want(wanted)
            if wanted and section.task is None:
                section.task = asyncio.create_task(section.fence.run(), name=f"fence {section.fence.lease}")
                section.task.add_done_callback(lambda _: self._changed())

    async def end(self) -> None:
        """Withdraw all work and release all fences."""
        self.want(set())
        for section in self._sections.values():
            if section.task is not None:
                await asyncio.wait((section.task,))
                if (error := section.task.exception()) is not None:
                    log.error("failed to run the fence %s", section.fence.lease, exc_info=error)
            if section.leaving:
                _ = await asyncio.wait(tuple(section.leaving.values()))

    def _may_forget(self) -> bool:
        if len(self._sections) == len(self._keys):
            return False
        keys = set(self._keys)
        return any(key not in keys and not section.in_use for key, section in self._sections.items())

    def _group(self, names: list[str]) -> None:
        self._key_of = {name: self._key_of.get(name) or self._layout.key_of(name) for name in names}
        self._names = names
        self._keys = self._layout.keys(names)
        groups: dict[str, set[str]] = {key: set() for key in self._keys}
        for name, key in self._key_of.items():
            groups[key].add(name)
        kept = {key: section for key, section in self._sections.items() if key in groups or section.in_use}
        self._sections = kept | {key: self._section(key) for key in groups if key not in kept}
        for key, section in self._sections.items():
            section.names = groups.get(key, set())
        self._by_lease = {section.fence.lease.name: section for section in self._sections.values()}
        self._all = tuple(section.fence for section in self._sections.values())

    def _section(self, key: str) -> _Section:
        timings = self._timings
        lease = Lease(
            self._client,
            namespace=self._namespace,
            name=self._layout.lease_name(key),
            identity=self._identity,
            timings=LeaseTimings(
                duration_seconds=timings.duration_seconds,
                renew_deadline_seconds=timings.duration_seconds - timings.drain_seconds,
                retry_seconds=timings.renew_seconds,
            ),
            strict=True,
            labels={**PART_OF, _FENCE_LABEL: "true", PREFIX_LABEL: self._layout.prefix},
            now=self._now,
        )
        observed = self._known(lease.name)
        if observed is not None:
            lease.observe(observed)
        fence = Fence(
            lease,
            timings=timings,
            counts=self._counts,
            slots=self._slots,
            begin=lambda: self._take(section),
            end=lambda: self._end(section),
            absent_since=lambda: self._absent_since(section, key),
            now=self._now,
        )
        section = _Section(fence)
        return section

    def _absent_since(self, section: _Section, key: str) -> float | None:
        name = section.fence.lease.name
        if self._watched_since is None or self._known(name) is not None:
            return None
        deleted_at = self._deleted_at.get(name)
        if deleted_at is None and self._unused(key):
            return float("-inf")
        return self._watched_since if deleted_at is None else max(self._watched_since, deleted_at)

    def _take(self, section: _Section) -> None:
        self._begin(section)
        self._taken()

    def _begin(self, section: _Section) -> None:
        if self._target is None:
            return
        for name in section.names - section.leaving.keys():
            section.begun.add(name)
            try:
                self._target.allow(name)
            except Exception:
                log.exception("failed to start the work on %s; retrying", title_of(name))
        for name in section.begun - section.names - section.leaving.keys():
            # The fleet ends the work on the cluster, and the fence must not be released before.
            section.leaving[name] = asyncio.create_task(self._leave(section, name), name=f"{name}: leaves its fence")

    async def _leave(self, section: _Section, name: str) -> None:
        try:
            await self._withdraw(section, name)
        except Exception:
            log.exception("failed to stop the work on %s; retrying", title_of(name))
            await asyncio.sleep(self._timings.retry_seconds)
        del section.leaving[name]
        self._changed()

    async def _end(self, section: _Section) -> None:
        while section.begun:
            ended = await asyncio.gather(
                *(self._withdraw(section, name) for name in section.begun), return_exceptions=True
            )
            failed = [error for error in ended if isinstance(error, Exception)]
            if failed:
                raise ExceptionGroup(f"failed to withdraw {len(failed)} clusters", failed)
        self._left()

    async def _withdraw(self, section: _Section, name: str) -> None:
        if self._target is not None:
            try:
                await self._target.withdraw(name)
            except asyncio.CancelledError as error:
                if asked_to_end():
                    raise
                raise ProviderError(f"what works on {title_of(name)} let a cancellation out") from error
        section.begun.discard(name)
