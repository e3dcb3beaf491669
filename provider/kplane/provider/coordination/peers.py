"""Peers: each process announces itself by a Lease, and watches the Leases of other peers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from kplane.provider.client.client import Client, Object
from kplane.provider.client.resources import LEASES
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import NotFound, ProviderError

__all__ = ["HIGHEST_WEIGHT", "PART_OF", "PREFIX_LABEL", "Announcement", "Peers"]

_log: Final = logging.getLogger(__name__)

PART_OF: Final = {"app.kubernetes.io/part-of": "multicluster-runtime"}
PREFIX_LABEL: Final = "mcr.sigs.k8s.io/prefix"
_PEER_LABEL: Final = "mcr.sigs.k8s.io/peer"
_WEIGHT: Final = "mcr.sigs.k8s.io/weight"
_LAYOUT: Final = "mcr.sigs.k8s.io/fences"
"""Annotation, not in upstream: layout by which a peer divides clusters."""
_KEEPS: Final = "mcr.sigs.k8s.io/keeps"
"""Annotation, not in upstream: fences that wait for a peer during its restart."""
HIGHEST_WEIGHT: Final = (1 << 32) - 1
_FIELD_MANAGER: Final = "kplane-peer"


@dataclass(slots=True)
class _Sighting:
    """A peer as last observed, with times of the local clock."""

    identity: str
    weight: int
    layout: str
    keeps: frozenset[str]
    said: tuple[object, ...]
    seen_at: float
    alive_until: float
    gone_at: float


class Announcement:
    """Announces this process to its peers by a Lease, which `keep` renews and `delete` removes.

    `keeps` are the fences of this process before its restart. The first announcement repeats them, so that they wait
    until this process has acquired them.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        prefix: str,
        identity: str,
        weight: int,
        layout: str,
        timings: ShardTimings,
    ) -> None:
        self.keeps: Collection[str] = ()
        self.identity: Final = identity
        self.name: Final = f"{prefix}-{identity}"
        self.acquired: Final = _timestamp()
        """acquireTime, which distinguishes the Lease from the Lease of another process with the same name."""
        self.announced: Final = asyncio.Event()
        self._client = client
        self._timings = timings
        self._namespace = namespace
        self._metadata: Final[Object] = {
            "namespace": namespace,
            "name": self.name,
            "labels": {**PART_OF, _PEER_LABEL: "true", PREFIX_LABEL: prefix},
            "annotations": {_WEIGHT: str(weight), _LAYOUT: layout},
        }
        self._writing = asyncio.Lock()
        self._leaving = self._pausing = self._gone = False
        self._uid: str | None = None

    async def keep(self) -> NoReturn:
        """Renew the Lease until cancelled."""
        timings = self._timings
        while True:
            try:
                async with asyncio.timeout(timings.peer_renew_seconds):
                    await self.write()
                pause = timings.peer_renew_seconds
            except (ProviderError, TimeoutError) as error:
                _log.warning(
                    "failed to renew the Lease of peer %s: %s; retrying",
                    self.identity,
                    str(error) or "no answer in time",
                )
                pause = min(timings.retry_seconds, timings.peer_renew_seconds)
            await asyncio.sleep(pause * random.uniform(0.8, 1.0))  # noqa: S311 - spreads load
            if self.announced.is_set() and not self._pausing:
                self.keeps = ()

    async def write(self) -> None:
        """Write the Lease once."""
        async with self._writing:
            if not self._gone:
                await self._write()

    async def leave(self) -> None:
        """Announce that this process acquires no more clusters, although its work continues."""
        self._leaving = True
        await self.write()

    async def pause(self, keeps: Collection[str]) -> None:
        """Announce a restart of this process: the fences `keeps` wait until its Lease expires."""
        self._pausing, self.keeps = True, keeps
        await self.write()

    async def delete(self) -> None:
        """Delete the Lease; no error if the Lease is gone."""
        self._gone = True
        # A pending write could arrive after the delete, and look like a live peer.
        async with self._writing:
            with contextlib.suppress(NotFound):
                await self._client.delete(LEASES, self.name, namespace=self._namespace, uid=self._uid)

    async def _write(self) -> None:
        spec = {
            "holderIdentity": "" if self._leaving else self.identity,
            "leaseDurationSeconds": self._timings.peer_seconds,
            "acquireTime": self.acquired,
            "renewTime": _timestamp(),
        }
        kept = {_KEEPS: ",".join(sorted(self.keeps))} if self.keeps else {}
        metadata = {**self._metadata, "annotations": {**self._metadata["annotations"], **kept}}
        lease = await self._client.apply(
            LEASES, {"metadata": metadata, "spec": spec}, field_manager=_FIELD_MANAGER, force=True
        )
        self._uid = lease["metadata"].get("uid")
        self.announced.set()


class Peers:
    """The other processes, as observed by their Leases.

    The time of a peer begins with the last observed change of its Lease, by the local clock. Timestamps in the Lease
    matter only at the first observation, so that long-dead peers do not count.
    """

    def __init__(
        self,
        announcement: Announcement,
        *,
        prefix: str,
        weight: int,
        layout: str,
        now: Callable[[], float],
    ) -> None:
        self._own = announcement
        self._prefix = prefix
        self._weight = weight
        self._layout = layout
        self._now = now
        self._seen: dict[str, _Sighting] = {}
        self._warned = False

    def see(self, event: str, lease: Object) -> bool:
        """Observe an event of a Lease; return whether a peer has come, gone or changed."""
        metadata = lease["metadata"]
        labels = metadata.get("labels") or {}
        if labels.get(_PEER_LABEL) != "true" or labels.get(PREFIX_LABEL) != self._prefix:
            return False
        last = self._seen.get(metadata["name"])
        if event == "DELETED":
            return self._seen.pop(metadata["name"], None) is not None
        sighting = self._look(lease, last)
        if sighting is not last:
            self._seen[metadata["name"]] = sighting
            self._compare(sighting)
        return last is None or _shown(last) != _shown(sighting) or last.alive_until <= self._now()

    def alive(self) -> dict[str, float]:
        """Return the weights of live peers with the same layout, including this process."""
        now = self._now()
        weights = {
            peer.identity: float(peer.weight)
            for peer in self._seen.values()
            if peer.identity and peer.layout == self._layout and now < peer.alive_until
        }
        return {**weights, self._own.identity: float(self._weight)}

    def kept(self) -> dict[str, str]:
        """Return the fences that wait for a live peer, by key."""
        now = self._now()
        alive = [peer for peer in self._seen.values() if peer.keeps and peer.identity and now < peer.alive_until]
        return {key: peer.identity for peer in sorted(alive, key=_renewed) for key in peer.keeps}

    def kept_by(self, name: str) -> frozenset[str]:
        """Return the fences that wait for the peer with a Lease of this name, even after its expiry."""
        return self._seen[name].keeps if name in self._seen else frozenset()

    def doubt(self, identity: str) -> None:
        """Treat a peer as gone until its next observation."""
        for peer in self._seen.values():
            if peer.identity == identity:
                peer.alive_until = min(peer.alive_until, self._now())

    def seen_at(self, identity: str) -> float:
        """Return the time of the last observation of a peer; minus infinity if never."""
        return max((peer.seen_at for peer in self._seen.values() if peer.identity == identity), default=float("-inf"))

    def strangers(self) -> list[str]:
        """Return the names of Leases of peers with another layout that may still be working."""
        now = self._now()
        return sorted(name for name, peer in self._seen.items() if peer.layout != self._layout and now < peer.gone_at)

    def next_change_at(self) -> float:
        """Return the time at which the next live peer counts as gone without a renewal."""
        now = self._now()
        return min((peer.alive_until for peer in self._seen.values() if peer.alive_until > now), default=float("inf"))

    def _look(self, lease: Object, last: _Sighting | None) -> _Sighting:
        spec: Mapping[str, Any] = lease.get("spec") or {}
        annotations: Mapping[str, str] = lease["metadata"].get("annotations") or {}
        weight, layout = _weight(annotations.get(_WEIGHT)), annotations.get(_LAYOUT) or ""
        keeps = frozenset((annotations.get(_KEEPS) or "").split(",")) - {""}
        identity, seconds = spec.get("holderIdentity") or "", float(spec.get("leaseDurationSeconds") or 0)
        said = (identity, spec.get("acquireTime"), spec.get("renewTime"), seconds, weight, layout, keeps)
        if last is not None and last.said == said:
            return last
        now = self._now()
        left = seconds if last is not None else self._left_by_timestamp(spec.get("renewTime"), seconds)
        alive_until = now + left if spec.get("renewTime") else now
        return _Sighting(identity, weight, layout, keeps, said, now, alive_until, now + seconds)

    def _left_by_timestamp(self, renewed: object, seconds: float) -> float:
        try:
            age = (_utc_now() - datetime.fromisoformat(str(renewed))).total_seconds()
        except (TypeError, ValueError):
            return 0.0
        return min(max(0.0, seconds - age), seconds)

    def _compare(self, sighting: _Sighting) -> None:
        own = sighting.identity == self._own.identity and self._own.announced.is_set()
        if own and sighting.said[1] != self._own.acquired and not self._warned:
            self._warned = True
            _log.error(
                "another process uses the identity of peer %s; give each its own identity, or they share one part",
                sighting.identity,
            )


def _shown(sighting: _Sighting) -> tuple[object, ...]:
    return sighting.identity, sighting.weight, sighting.layout, sighting.keeps


def _renewed(sighting: _Sighting) -> str:
    return str(sighting.said[2])


def _weight(text: str | None) -> int:
    """Return the weight, or 1 if the text is invalid, as upstream does."""
    number = int(text) if text and len(text) <= len(str(HIGHEST_WEIGHT)) and text.isdecimal() else 1
    return number if 1 <= number <= HIGHEST_WEIGHT else 1


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _timestamp() -> str:
    return _utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
