"""The clusters of a fleet: at most one engagement for each name, and the allowed work on each cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import asked_to_end, complete
from kplane.provider.cache.store import Extract, extract_of, require_same
from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.typed import Kind, ObjectT
from kplane.provider.cluster.cluster import Cluster, Wiring
from kplane.provider.cluster.context import LOCAL, title_of
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import Aware, LocalAware, LocalWatcher
from kplane.provider.durations import Durations
from kplane.provider.errors import ClusterNotFound, ClusterNotReady, ProviderError

__all__ = ["Clusters"]

log: Final = logging.getLogger(__name__)


class _Slot:
    """The desired cluster and the engagement under a name."""

    def __init__(self, *, allowed: bool) -> None:
        self.desired: Cluster | None = None
        self.allowed = allowed
        self.engagement: Engagement | None = None
        self.work: Engagement | None = None
        """Inner engagement for the awares, while work on the cluster is allowed."""
        self.watch: Engagement | None = None
        """Inner engagement for the watchers of the local cluster, while they observe the cluster."""
        self.lock = asyncio.Lock()
        self.users = 0


class Clusters:
    """Engages every aware with every cluster. Names are independent: a slow cluster blocks no other cluster.

    `engage_timeout_seconds` bounds a call of an aware's `engage`. A call that fails or takes longer is undone, and
    retried with growing delays up to `retry_maximum_seconds`. If the fleet is `coordinated`, awares are engaged with a
    cluster only from `allow` to `withdraw`. `wiring` configures clients and caches of the clusters. `on_error` is
    called in the loop for each failed attempt, and must not block.
    """

    def __init__(
        self,
        *,
        awares: Iterable[Aware | LocalAware] = (),
        coordinated: bool = False,
        wiring: Wiring = Wiring(),  # noqa: B008 - frozen
        on_error: Callable[[Cluster, BaseException], None] | None = None,
        engage_timeout_seconds: float = 60.0,
        retry_initial_seconds: float = 1.0,
        retry_maximum_seconds: float = 60.0,
    ) -> None:
        self.engage_durations: Final = Durations()
        """Seconds until an aware was engaged with a cluster, including failed attempts; for metrics."""
        self.engage_failures = 0
        """Number of failed attempts of awares to engage with a cluster; for metrics."""
        self._awares: list[Aware | LocalAware] = list(awares)
        self._coordinated = coordinated
        self._wiring = wiring
        self._on_error = on_error
        self._indexes: dict[tuple[KindName, str], Extract] = {}
        self._slots: dict[str, _Slot] = {}
        self._failures: dict[tuple[int, int], str] = {}
        self._generations = itertools.count(1)
        self._changed = asyncio.Event()
        self._changed.set()
        self._closed = False
        self._observes_local = False
        self._engage_timeout_seconds = engage_timeout_seconds
        self._retry_initial_seconds = retry_initial_seconds
        self._retry_maximum_seconds = retry_maximum_seconds

    def add_aware(self, aware: Aware | LocalAware) -> None:
        """Engage an aware with every cluster, present and future."""
        self._awares.append(aware)
        for slot in tuple(self._slots.values()):
            if slot.watch is not None and not slot.watch.closing:
                self._begin_watch(aware, slot.watch)
            if slot.work is not None and not slot.work.closing:
                self._begin(aware, slot.work)

    def index_field(self, kind: Kind[ObjectT], field: str, extract: Callable[[ObjectT], Iterable[str]]) -> None:
        """Index a field in the caches of all clusters, present and future; see `Cache.index_field`."""
        name, plain = parse_kind(kind), extract_of(kind, extract)
        require_same(self._indexes.get((name, field)), plain, kind=name, field=field)
        for engagement in self.engagements():
            engagement.cluster.cache.index_field(str(name), field, plain)
        self._indexes[name, field] = plain

    async def add(self, cluster: Cluster) -> None:
        """Add a cluster. Raises ProviderError if its name is taken, and as `add_or_replace`."""
        slot = self._slots.get(cluster.name)
        if slot is not None and slot.desired is not None:
            raise ProviderError(f"there is a cluster {cluster.name!r} already: remove it first, or replace it")
        await self.add_or_replace(cluster)

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Add a cluster, or replace the cluster of its name, and return after the change.

        If the new cluster continues the present cluster, the engagement stays, with the new credentials. Otherwise the
        present engagement is closed before the new engagement begins. If calls overlap, the latest call wins. Awares
        are engaged in the background. Raises ProviderError after `aclose()`.
        """
        if self._closed:
            raise ProviderError(f"cluster {cluster.name!r} cannot be added: the fleet is closed")
        await self._want(cluster.name, cluster)

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster, and return after its end. Ignores an unknown name."""
        if name in self._slots:
            await self._want(name, None)

    def get(self, name: str) -> Cluster:
        """Return the cluster of that name. Raises ClusterNotFound, or ClusterNotReady while it is being engaged."""
        slot = self._slots.get(name)
        if slot is None or slot.desired is None:
            raise ClusterNotFound(f"there is no cluster {name!r}", cluster=name)
        if slot.engagement is None or slot.engagement.closing:
            raise ClusterNotReady(f"cluster {name!r} is being engaged; try again soon")
        return slot.engagement.cluster

    def present(self, name: str) -> Cluster:
        """Return a cluster for reads, even while its engagement closes. Raises as `get`."""
        slot = self._slots.get(name)
        if slot is not None and slot.engagement is not None and not slot.engagement.closed:
            return slot.engagement.cluster
        return self.get(name)

    def names(self, *, local: bool = False) -> list[str]:
        """Return the names of all desired clusters, sorted; with `local` the local cluster too."""
        return sorted(
            name for name, slot in self._slots.items() if slot.desired is not None and (local or name != LOCAL)
        )

    async def wait_changed(self) -> None:
        """Wait until clusters were added or removed since the last call. The first call returns at once.

        Only a single caller may wait.
        """
        await self._changed.wait()
        self._changed.clear()

    def allow(self, name: str) -> None:
        """Let the work on a cluster begin. Does nothing if the work has begun, or for an unknown cluster."""
        slot = self._slots.get(name)
        if slot is None or slot.desired is None:
            return
        slot.allowed = True
        engagement, work = slot.engagement, slot.work
        # If the lock is held, its holder applies the change.
        if not slot.lock.locked() and engagement is not None and not engagement.closing and (not work or work.closed):
            slot.work = self._begin_work(engagement)

    async def withdraw(self, name: str) -> None:
        """End the work on a cluster, and return after its end; the cluster stays in the fleet.

        The call applies no other pending change, which could fail or delay the return.
        """
        slot = self._slots.get(name)
        if slot is None:
            return
        slot.allowed = False
        async with slot.lock:
            if not slot.allowed:
                await self._end_work(slot)
        if slot.allowed:  # allowed again during the end of the work
            self.allow(name)

    def observe_local(self) -> None:
        """Engage each `LocalWatcher` with the local cluster, whether or not work on it is allowed."""
        self._observes_local = True
        slot = self._slots.get(LOCAL)
        if slot is not None and slot.engagement is not None and not slot.engagement.closing and slot.watch is None:
            slot.watch = self._watch(slot.engagement)

    async def ignore_local(self) -> None:
        """End the watches of `observe_local`, and return after their end."""
        self._observes_local = False
        slot = self._slots.get(LOCAL)
        if slot is not None and slot.watch is not None:
            watch, slot.watch = slot.watch, None
            await watch.aclose()

    def engagements(self) -> list[Engagement]:
        """Return the live engagements, sorted by the name of their cluster."""
        live = [slot.engagement for slot in self._slots.values() if slot.engagement is not None]
        return sorted(
            (engagement for engagement in live if not engagement.closing),
            key=lambda engagement: engagement.cluster.name,
        )

    def failure(self, name: str) -> str | None:
        """Return the last error of an aware that fails to engage with a cluster; None if no aware fails."""
        slot = self._slots.get(name)
        generation = slot.engagement.generation if slot is not None and slot.engagement is not None else 0
        return next((cause for key, cause in self._failures.items() if key[0] == generation), None)

    async def aclose(self) -> None:
        """Close every engagement at once, and accept no more clusters."""
        self._closed = True
        await complete(self._want(name, None) for name in tuple(self._slots))

    async def _want(self, name: str, cluster: Cluster | None) -> None:
        async with self._applying(name) as slot:
            if (slot.desired is None) != (cluster is None):
                self._changed.set()
            if cluster is None:
                slot.allowed = not self._coordinated
            slot.desired = cluster

    @contextlib.asynccontextmanager
    async def _applying(self, name: str) -> AsyncIterator[_Slot]:
        """Change the desired state of a name in this context, which applies the change at its end."""
        slot = self._slots.setdefault(name, _Slot(allowed=not self._coordinated))
        slot.users += 1
        try:
            yield slot
            async with slot.lock:
                # The holder of the lock applies the latest desired state; callers of older changes find it applied.
                while not self._applied(slot):
                    await self._step(slot)
        finally:
            slot.users -= 1
            if not slot.users and slot.desired is None and slot.engagement is None:
                del self._slots[name]

    @staticmethod
    def _applied(slot: _Slot) -> bool:
        engagement = slot.engagement
        if engagement is None:
            return slot.desired is None
        fits = slot.desired is not None and not engagement.closing and engagement.cluster.equals(slot.desired)
        working = slot.work is not None and not slot.work.closing
        return fits and (working if slot.allowed else slot.work is None)

    async def _step(self, slot: _Slot) -> None:
        desired, present = slot.desired, slot.engagement
        if present is None:
            if desired is not None:
                slot.engagement = self._engage(desired)
                slot.watch = self._watch(slot.engagement) if self._observes(desired.name) else None
        elif desired is None or present.closing or not desired.continues(present.cluster):
            await present.aclose()
            slot.engagement = slot.work = slot.watch = None
            self._failures = {key: cause for key, cause in self._failures.items() if key[0] != present.generation}
        elif not present.cluster.equals(desired):
            await present.update(desired)
        elif slot.work is None:
            slot.work = self._begin_work(present)
        else:
            await self._end_work(slot)

    @staticmethod
    async def _end_work(slot: _Slot) -> None:
        if slot.work is not None:
            await slot.work.aclose()
            if slot.engagement is not None and slot.watch is None:
                await slot.engagement.cluster.pause_reading()
            slot.work = None

    def _engage(self, cluster: Cluster) -> Engagement:
        cluster.wire(self._wiring)
        for (name, field), extract in self._indexes.items():
            cluster.cache.index_field(str(name), field, extract)
        engagement = Engagement(cluster, generation=next(self._generations))
        log.info("%s: engaged, generation %d", title_of(cluster.name), engagement.generation)
        return engagement

    def _begin_work(self, engagement: Engagement) -> Engagement:
        work = engagement.inner()
        engagement.cluster.resume_reading()
        for aware in self._awares:
            self._begin(aware, work)
        return work

    def _observes(self, name: str) -> bool:
        return name == LOCAL and self._observes_local

    def _watch(self, engagement: Engagement) -> Engagement:
        watch = engagement.inner()
        for aware in self._awares:
            self._begin_watch(aware, watch)
        return watch

    def _begin_watch(self, aware: Aware | LocalAware, watch: Engagement) -> None:
        if isinstance(aware, LocalWatcher):
            # The key differs from the key of the same aware's engagement for work.
            key = (watch.generation, -id(aware))
            trying = self._keep_trying(aware.watch_local, watch, who=type(aware).__name__, key=key)
            _ = watch.spawn(trying, name=f"watch {type(aware).__name__}")

    def _begin(self, aware: Aware | LocalAware, work: Engagement) -> None:
        if work.cluster.name != LOCAL:
            engage = aware.engage if isinstance(aware, Aware) else None
        else:
            engage = aware.engage_local if isinstance(aware, LocalAware) else None
        if engage is not None:
            trying = self._keep_trying(engage, work, who=type(aware).__name__, key=(work.generation, id(aware)))
            _ = work.spawn(trying, name=f"engage {type(aware).__name__}")

    async def _keep_trying(
        self,
        engage: Callable[[Engagement], Awaitable[None]],
        work: Engagement,
        *,
        who: str,
        key: tuple[int, int],
    ) -> None:
        backoff = Backoff(initial_seconds=self._retry_initial_seconds, maximum_seconds=self._retry_maximum_seconds)
        began = time.monotonic()
        while not work.closing:
            attempt = work.inner()
            try:
                async with asyncio.timeout(self._engage_timeout_seconds):
                    await engage(attempt)
            except (Exception, asyncio.CancelledError) as error:
                if asked_to_end():
                    raise
                delay = backoff.next_delay()
                self._report(work.cluster, error)
                self.engage_failures += 1
                self._failures[key] = f"{who} failed to engage: {str(error) or type(error).__name__}"
                message = "%s: %s; retrying in %.1f s"
                log.warning(message, title_of(work.cluster.name), self._failures[key], delay, exc_info=error)
            else:
                self._failures.pop(key, None)
                self.engage_durations.note(time.monotonic() - began)
                return
            await attempt.aclose()
            await asyncio.sleep(delay)

    def _report(self, cluster: Cluster, error: BaseException) -> None:
        if self._on_error is None:
            return
        try:
            self._on_error(cluster, error)
        except Exception:
            log.exception("%s: failed to report the error to on_engage_error", title_of(cluster.name))
