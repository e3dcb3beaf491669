"""Sharding: several processes share the clusters, and each cluster belongs to a single process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client, Object
from kplane.provider.client.resources import LEASES
from kplane.provider.cluster.context import LOCAL, current_cluster
from kplane.provider.contracts import EngagementTarget
from kplane.provider.coordination.election import end_process
from kplane.provider.coordination.expiry import exit_on_expiry
from kplane.provider.coordination.fence import Counts, wait
from kplane.provider.coordination.fences import Fences
from kplane.provider.coordination.lease import clock
from kplane.provider.coordination.lease_gc import LeaseGC
from kplane.provider.coordination.peers import HIGHEST_WEIGHT, PART_OF, PREFIX_LABEL, Announcement, Peers
from kplane.provider.coordination.rendezvous import assign
from kplane.provider.coordination.shards import FencedBy, Layout, ShardTimings, object_name, require_prefix
from kplane.provider.errors import ClusterNotOwned, ProviderError

__all__ = ["Sharded", "ShardingStats"]

_log: Final = logging.getLogger(__name__)

_SELECTOR: Final = ",".join(f"{key}={value}" for key, value in PART_OF.items())

_RELIST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingStats:
    """Current state of a coordinator, and counts since its creation; for metrics."""

    peers: tuple[str, ...]
    """Identities of all live peers, including this process, sorted."""
    fences: int
    """Number of fences: shards, or clusters."""
    wanted: int
    """Number of fences assigned to this process."""
    owned: int
    """Number of fences under which this process works."""
    draining: int
    """Number of owned fences that this process is about to release, or cannot renew."""
    clusters: int
    """Number of clusters that this process works on."""
    acquired: int
    released: int
    lost: int
    renewals: int
    failures: int


class Sharded:
    """Divides clusters among peers: processes that run the same manager, with Leases in one namespace.

    Each cluster belongs to one of `shards` virtual shards by its name, and each shard to a peer by weighted rendezvous
    hashing. The owner of a shard holds its fence, the Lease `<fence_prefix>-<number>`. With `fence="cluster"` each
    cluster has its own Lease, `<fence_prefix>-<cluster>`: the cluster moves alone, and costs a renewal each
    `timings.renew_seconds`. All peers must use the same layout; a peer with another layout waits until the other peers
    are gone.

    The Lease of a peer is `<peer_prefix>-<identity>`. `identity` is the host name by default, and must be unique. Two
    processes with the same identity share a single part, and never work on the same cluster at once. `weight` is the
    relative share of a peer. A new peer observes the other peers before it acquires fences, and former owners drain
    the clusters that move. A dead peer is replaced when its fences expire, after `timings.duration_seconds`. A peer
    that stops is replaced at once, unless `returns` returns true. True means that the process restarts soon under its
    identity, such as a pod of a StatefulSet in a rolling update. The fences then wait at most `timings.peer_seconds`,
    and no shard moves.

    Each peer watches the local cluster, because its events may lead to work in the clusters of any peer. The owner of
    the shard of the local cluster reconciles the local cluster itself.

    A fence with a missing Lease is used only after the duration of its new Lease, because a user may have deleted the
    Lease of a working process. `unused` returns true if certainly no process works behind the fence of a key
    (`layout`), so that a new installation starts without a wait. `unused` raises ProviderError while the answer is
    unknown.

    Work is withdrawn before a fence that cannot be renewed expires. If the work does not end in time, the fence is not
    released, and `on_overrun` is called in a separate thread; the default ends the process. Ownership follows the local
    monotonic clock. Ownership is checked at dispatch, at a lookup, and before each write, which may take as long as the
    fence lasts. A gap remains: a process that is frozen between its last check and the sending of a request sends the
    request when it resumes, and a network may deliver late. Kubernetes refuses such a write only if the write has a
    resourceVersion: send a resourceVersion with updates that must not come late.

    Peers delete Leases that were not renewed for an hour: Leases of dead peers, and fences of clusters that have left.

    `client` reaches the cluster of the Leases. It needs get, list, watch, create, update, patch and delete on `leases`
    (coordination.k8s.io) in `namespace`, and must not be guarded by this coordinator. Raises ValueError for settings
    that do not fit together. Names, labels and times are upstream's (coordinator/sharded of
    sigs.k8s.io/multicluster-runtime); upstream's processes count as strangers, because they hash differently.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "kube-system",
        identity: str | None = None,
        weight: int = 1,
        fence: FencedBy = "shard",
        shards: int = 64,
        peer_prefix: str = "mcr-peer",
        fence_prefix: str = "mcr-shard",
        timings: ShardTimings = ShardTimings(),  # noqa: B008 - frozen
        returns: Callable[[], Awaitable[bool]] | None = None,
        unused: Callable[[str], bool] = lambda _key: False,
        on_overrun: Callable[[], None] | None = end_process,
        now: Callable[[], float] = clock,
    ) -> None:
        require_prefix(peer_prefix)
        if peer_prefix == fence_prefix:
            raise ValueError(f"peers and fences cannot have the same prefix {peer_prefix!r}")
        if not 1 <= weight <= HIGHEST_WEIGHT:
            raise ValueError(f"weight {weight}: has to be from 1 to {HIGHEST_WEIGHT}")
        self.identity: Final = object_name(identity if identity is not None else socket.gethostname())
        self.layout: Final = Layout(fence_prefix, fence, shards)
        self.timings: Final = timings
        self._client = client
        self._namespace = namespace
        self._weight = weight
        self._peer_prefix = peer_prefix
        self._returns = returns
        self._unused = unused
        self._on_overrun = on_overrun
        self._now = now
        self._counts = Counts()
        self._listeners: list[Callable[[], None]] = []
        self._lost_listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._settled_at = float("-inf")
        self._announcement, self._peers, self._leases, self._fences = self._make()

    @property
    def stats(self) -> ShardingStats:
        """State and counts, for metrics."""
        fences, counts = self._fences.all(), self._counts
        return ShardingStats(
            peers=tuple(sorted(self._peers.alive())),
            fences=len(fences),
            wanted=sum(fence.wanted for fence in fences),
            owned=sum(fence.working for fence in fences),
            draining=sum(fence.working and not fence.may_begin for fence in fences),
            clusters=self._fences.clusters,
            acquired=counts.acquired,
            released=counts.released,
            lost=counts.lost,
            renewals=counts.renewals,
            failures=counts.failures,
        )

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time this process has acquired clusters; it must not block.

        A failure is logged, and does not affect the work.
        """
        self._listeners.append(listener)

    def listen_lost(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time after the end of work on clusters that this process no longer owns.

        It must not block. A failure is logged, and does not affect the work.
        """
        self._lost_listeners.append(listener)

    def may_work(self, cluster: str) -> bool:
        """Return whether this process holds the fence of the cluster, and may start work."""
        fence = self._fences.of(cluster)
        return fence is not None and fence.may_begin

    def grace_seconds(self, cluster: str) -> float | None:
        """Return the remaining seconds of the fence, less a margin to cancel reconciles; 0 without a fence."""
        fence = self._fences.of(cluster)
        return max(0.0, fence.seconds_left - self.timings.margin_seconds) if fence is not None else 0.0

    def require_read(self, cluster: str) -> None:
        """Raise ClusterNotOwned if this process does not hold the fence; every process may read the local cluster."""
        if cluster != LOCAL:
            self._require(cluster)

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned if this process does not hold the fence; return the fence's remaining seconds.

        Reconciles of owned clusters may write to the local cluster. Outside of a reconcile, writes to the local cluster
        have no limit.
        """
        owned = cluster if cluster != LOCAL else current_cluster()
        return self._require(owned) if owned is not None else None

    async def run(self, target: EngagementTarget) -> None:
        """Share the clusters with the peers until cancelled; then withdraw all work, release all fences, and leave."""
        self._changed = asyncio.Event()
        self._announcement, self._peers, self._leases, self._fences = self._make(target)
        helpers = [
            asyncio.create_task(
                self._leases.run(lambda event: self._observe(event.kind, event.object)),
                name=f"watch the Leases in {self._namespace}",
            ),
            asyncio.create_task(self._watch_fleet(target), name="watch the fleet for its coordinator"),
            asyncio.create_task(self._make_gc().run(), name="delete old Leases"),
        ]
        with exit_on_expiry(self._fences.overrun_at, on_overrun=self._on_overrun, now=self._now):
            # An event of the local cluster may lead to work in any cluster, so each peer has to observe it.
            target.observe_local()
            try:
                await self._take_part(helpers)
            finally:
                await _await_shielded(self._leave(helpers))
                await target.ignore_local()

    async def _take_part(self, helpers: list[asyncio.Task[Any]]) -> None:
        # Observe all peers first: otherwise this process would acquire fences of other peers, and have to return them.
        await self._leases.synced.wait()
        self._fences.watched()
        self._announcement.keeps = self._peers.kept_by(self._announcement.name)
        helpers.append(asyncio.create_task(self._announcement.keep(), name=f"announce peer {self.identity}"))
        await self._announcement.announced.wait()
        await self._wait_for_strangers()
        self._settle()
        _log.info("peer %s shares the clusters with %d others", self.identity, len(self._peers.alive()) - 1)
        while True:
            for task in helpers:
                if task.done():
                    task.result()
            # Peers that start together have to observe each other first; otherwise fences move twice.
            await asyncio.sleep(max(0.0, self._settled_at - self._now()))
            self._decide()
            await self._pause(min(self.timings.probe_seconds, self._next_change_at() - self._now()))

    async def _wait_for_strangers(self) -> None:
        """Wait until no peer divides the clusters differently.

        Each process lists the peers after its own announcement, so of two concurrent starts at least one observes
        the other.
        """
        logged: str | None = None
        while True:
            try:
                for lease in (
                    await self._client.list(LEASES, namespace=self._namespace, label_selector=_SELECTOR)
                ).items:
                    self._observe("ADDED", lease)
                strangers = self._peers.strangers()
                if not strangers:
                    return
                names = ", ".join(strangers)
                problem = f"{names} divide the clusters differently from {self.layout}; use the same settings"
            except ProviderError as error:
                problem = f"failed to list the Leases in {self._namespace}: {error}"
            if problem != logged:
                _log.error("peer %s is waiting: %s", self.identity, problem)
                logged = problem
            await self._pause(self.timings.probe_seconds)

    def _decide(self) -> None:
        """Assign the fences to the peers, and want exactly the fences of this process."""
        fences = self._fences
        fences.arrange()
        for peer in fences.silent_holders(seen_at=self._peers.seen_at):
            self._peers.doubt(peer)
        owners = assign(fences.keys(), self._peers.alive(), held=self._peers.kept() | fences.holders())
        fences.want({key for key, owner in owners.items() if owner == self.identity})

    def _next_change_at(self) -> float:
        return min(self._peers.next_change_at(), self._fences.next_change_at())

    def _observe(self, event: str, lease: Object) -> None:
        before = self._peers.alive().keys()
        changed = self._peers.see(event, lease)
        if changed and self._peers.alive().keys() - before:
            self._settle()
        if self._fences.see(event, lease) or changed:
            self._changed.set()

    def _settle(self) -> None:
        now = self._now()
        if now >= self._settled_at:
            self._settled_at = now + self.timings.retry_seconds

    def _require(self, cluster: str) -> float:
        fence = self._fences.of(cluster)
        seconds = fence.seconds_left if fence is not None else 0.0
        if seconds <= 0:
            cause = (
                f"its fence {fence.lease} is held by {fence.lease.holder or 'nobody'}"
                if fence
                else "it is not known yet"
            )
            raise ClusterNotOwned(f"cluster {cluster!r} is not worked on by peer {self.identity}: {cause}")
        return seconds

    async def _leave(self, helpers: list[asyncio.Task[Any]]) -> None:
        announced = self._announcement.announced.is_set()
        keeps = self._fences.working_keys()
        returns = announced and await self._will_return()
        try:
            if announced:
                await self._announce(self._announcement.pause(keeps) if returns else self._announcement.leave())
            await self._fences.end()
            if announced:
                # Announce the pause again: the time to return begins at the end of the work.
                await self._announce(self._announcement.pause(keeps) if returns else self._announcement.delete())
        finally:
            for task in helpers:
                task.cancel()
            _ = await asyncio.wait(helpers)

    async def _will_return(self) -> bool:
        if self._returns is None or self.layout.by != "shard":
            return False
        try:
            async with asyncio.timeout(self.timings.call_seconds):
                return await self._returns()
        except (ProviderError, TimeoutError) as error:
            cause = str(error) or "no answer in time"
            _log.warning("failed to find out whether peer %s is started again: %s", self.identity, cause)
            return False

    async def _announce(self, announcing: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self.timings.call_seconds):
                await announcing
        except (ProviderError, TimeoutError) as error:
            _log.warning("failed to announce that peer %s leaves: %s", self.identity, str(error) or "no answer in time")

    @staticmethod
    def _notify(listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - custom code; the error is logged
                _log.exception("failed to notify a listener about clusters that this process acquired or lost")

    async def _watch_fleet(self, target: EngagementTarget) -> None:
        while True:
            await target.wait_changed()
            self._changed.set()

    async def _pause(self, seconds: float) -> None:
        await wait(self._changed, at_most_seconds=seconds)

    def _make_gc(self) -> LeaseGC:
        selector = f"{PREFIX_LABEL} in ({self._peer_prefix}, {self.layout.prefix})"
        return LeaseGC(
            self._client,
            namespace=self._namespace,
            leases=lambda: self._leases.list(label_selector=selector),
            needed=self._fences.knows,
        )

    def _make(self, target: EngagementTarget | None = None) -> tuple[Announcement, Peers, Informer, Fences]:
        announcement = Announcement(
            self._client,
            namespace=self._namespace,
            prefix=self._peer_prefix,
            identity=self.identity,
            weight=self._weight,
            layout=str(self.layout),
            timings=self.timings,
        )
        peers = Peers(
            announcement, prefix=self._peer_prefix, weight=self._weight, layout=str(self.layout), now=self._now
        )
        leases = Informer(
            self._client, LEASES, namespace=self._namespace, label_selector=_SELECTOR, relist_seconds=_RELIST_SECONDS
        )
        fences = Fences(
            self._client,
            namespace=self._namespace,
            identity=self.identity,
            layout=self.layout,
            timings=self.timings,
            counts=self._counts,
            target=target,
            known=lambda name: leases.get(name, namespace=self._namespace),
            unused=self._unused,
            changed=self._changed.set,
            taken=lambda: self._notify(self._listeners),
            left=lambda: self._notify(self._lost_listeners),
            now=self._now,
        )
        return announcement, peers, leases, fences


async def _await_shielded(work: Coroutine[Any, Any, None]) -> None:
    """Await a coroutine to its end, even if the caller is cancelled several times."""
    task = asyncio.create_task(work, name="leave the peers")
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    task.result()
