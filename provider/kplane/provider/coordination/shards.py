"""How clusters are divided among peers, and what the Leases of that are called."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal

from typing_extensions import override

from kplane.provider.client.resources import DNS_LABEL
from kplane.provider.coordination.rendezvous import slot_of

__all__ = ["FencedBy", "Layout", "ShardTimings", "object_name"]

FencedBy = Literal["shard", "cluster"]

_LONGEST: Final = 180
"""Leaves room for a prefix in the 253 characters of an object's name."""
_FORBIDDEN: Final = re.compile(r"[^a-z0-9.-]")
_DOT: Final = re.compile(r"-*\.[.-]*")
_HASHED: Final = re.compile(r".*-[0-9a-f]{16}")
_MARGIN_SECONDS: Final = 0.5
_JITTER: Final = 1.2
_MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTimings:
    """How long Leases last, in seconds. The defaults are upstream's, if it has them.

    A fence lasts `duration_seconds` and is renewed every `renew_seconds`, retried after `retry_seconds` if that
    fails. If it could not be renewed until `drain_seconds` before its end, work is withdrawn: reconciles under way
    have a second less than that to end, and are cancelled then. A fence that goes to another peer is renewed until its
    work has ended, but not longer than `handover_seconds`. A peer that is silent for `peer_seconds` gets nothing; it
    says that it is there every `peer_renew_seconds`. All is looked at again every `probe_seconds`, though changes are
    noticed by a watch.

    Raises ValueError if they do not fit.
    """

    duration_seconds: int = 20
    renew_seconds: float = 10.0
    retry_seconds: float = 0.75
    drain_seconds: float = 5.0
    handover_seconds: float = 60.0
    peer_seconds: int = 30
    peer_renew_seconds: float = 10.0
    probe_seconds: float = 5.0

    def __post_init__(self) -> None:
        if min(self.renew_seconds, self.retry_seconds, self.probe_seconds, self.handover_seconds) <= 0:
            raise ValueError("renew_, retry_, probe_ and handover_seconds have to be more than 0")
        if self.drain_seconds <= self.margin_seconds:
            raise ValueError(
                f"drain_seconds has to be more than {self.margin_seconds:g}: that much is kept as a margin"
            )
        time_to_renew = self.duration_seconds - self.drain_seconds
        if not (self.renew_seconds + 2 * self.retry_seconds) * _JITTER < time_to_renew:
            raise ValueError(
                f"a fence of {self.duration_seconds:g} s that is renewed every {self.renew_seconds:g} s, tried again"
                f" after {self.retry_seconds:g} s, and drained {self.drain_seconds:g} s before its end: there has to be"
                " time for two tries between the renewal and the drain"
            )
        if not 0 < self.peer_renew_seconds * _JITTER < self.peer_seconds:
            raise ValueError(
                f"a peer that is forgotten after {self.peer_seconds:g} s has to tell of itself more often than every"
                f" {self.peer_renew_seconds:g} s"
            )
        if self.peer_seconds < self.duration_seconds:
            raise ValueError("peer_seconds must not be less than duration_seconds: a peer may work that long")

    @property
    def margin_seconds(self) -> float:
        """So long before a fence runs out nothing is done under it any more."""
        return _MARGIN_SECONDS

    @property
    def call_seconds(self) -> float:
        """How long one call may take, so that two of them fit in before work has to be withdrawn."""
        return (self.duration_seconds - self.drain_seconds - self.renew_seconds) / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Which fence a cluster is behind. Processes can only share a fleet if theirs are equal.

    With `by` "shard" there are `shards` fences, and the name of a cluster decides: as many Leases, whatever the number
    of clusters. With "cluster" each has its own, as upstream has it. Raises ValueError for what makes no object names.
    """

    prefix: str
    by: FencedBy
    shards: int

    def __post_init__(self) -> None:
        require_prefix(self.prefix)
        if self.by not in {"shard", "cluster"}:
            raise ValueError(f'fence={self.by!r}: has to be "shard" or "cluster"')
        if not 1 <= self.shards <= _MOST_SHARDS:
            raise ValueError(f"{self.shards} shards: has to be from 1 to {_MOST_SHARDS}")

    @override
    def __str__(self) -> str:
        return f"{self.prefix}/{self.shards if self.by == 'shard' else 'cluster'}"

    def keys(self, clusters: list[str]) -> list[str]:
        """All fences there are, given these clusters."""
        return [str(number) for number in range(self.shards)] if self.by == "shard" else clusters

    def key_of(self, cluster: str) -> str:
        """The fence of a cluster."""
        return str(slot_of(cluster, self.shards)) if self.by == "shard" else cluster

    def lease_name(self, key: str) -> str:
        """Name of the Lease of a fence: `mcr-shard-17`, or `mcr-shard-<cluster>`."""
        return f"{self.prefix}-{key if self.by == 'shard' else _unique_name(key)}"


def require_prefix(prefix: str) -> None:
    """Raise ValueError for what cannot begin the name of a Lease, or be the value of a label."""
    if not DNS_LABEL.fullmatch(prefix):
        raise ValueError(f"prefix {prefix!r}: has to be a DNS-1123 label: a-z, 0-9, - inside, 63 at most")


def object_name(text: str) -> str:
    """Make a DNS-1123 subdomain of any text, as upstream does: lower case, and - for what has no place in one."""
    # Beyond upstream: a dot next to a dash or another dot would not be accepted.
    name = _DOT.sub(".", _FORBIDDEN.sub("-", text.lower())).strip("-.")
    return name[:_LONGEST].rstrip("-.") or "unknown"


def _unique_name(text: str) -> str:
    """Such a name that no other text has: two clusters must not meet behind one fence."""
    name = object_name(text)
    if name == text and not _HASHED.fullmatch(text):
        return name
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
