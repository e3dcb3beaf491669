"""Layout of clusters and fences, names of the Leases, and their timings."""

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
"""Maximum length of a name, which leaves room for a prefix in the 253 characters of an object name."""
_FORBIDDEN: Final = re.compile(r"[^a-z0-9.-]")
_DOT: Final = re.compile(r"-*\.[.-]*")
_HASHED: Final = re.compile(r".*-[0-9a-f]{16}")
_MARGIN_SECONDS: Final = 0.5
_LONGEST_CALL_SECONDS: Final = 5.0
"""Maximum timeout of a call: a hanging call must not outlast an outage for long."""
_JITTER: Final = 1.2
_MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTimings:
    """Timings of the Leases, in seconds. The defaults are upstream's if upstream has the setting.

    A fence lasts `duration_seconds` and is renewed every `renew_seconds`; a failure is retried after `retry_seconds`.
    Without a renewal until `drain_seconds` before the expiry, work is withdrawn: running reconciles have a second less
    than `drain_seconds`, and are then cancelled. A fence that moves to another peer is renewed until its work has
    ended, at most `handover_seconds`. A peer that is silent for `peer_seconds` gets no fences; a peer announces itself
    every `peer_renew_seconds`. Peers and fences are checked every `probe_seconds`, and a watch notices changes at once.

    Raises ValueError if the values do not fit together.
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
                f"a peer that is forgotten after {self.peer_seconds:g} s has to announce itself more often than every"
                f" {self.peer_renew_seconds:g} s"
            )
        if self.peer_seconds < self.duration_seconds:
            raise ValueError("peer_seconds must not be less than duration_seconds: a peer may work that long")

    @property
    def margin_seconds(self) -> float:
        """Time before the expiry of a fence in which all work has ended."""
        return _MARGIN_SECONDS

    @property
    def call_seconds(self) -> float:
        """Timeout of a call, so that two calls fit before work must be withdrawn."""
        return min(_LONGEST_CALL_SECONDS, (self.duration_seconds - self.drain_seconds - self.renew_seconds) / 2)


@dataclass(frozen=True, slots=True)
class Layout:
    """Maps clusters to fences. Processes can share a fleet only if their layouts are equal.

    With `by` "shard" there are `shards` fences, and the name of a cluster selects its fence. So the number of Leases
    does not depend on the number of clusters. With "cluster" each cluster has a fence, as in upstream. Raises
    ValueError if the names cannot be object names.
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
        """Return all fences for these clusters."""
        return [str(number) for number in range(self.shards)] if self.by == "shard" else clusters

    def key_of(self, cluster: str) -> str:
        """Return the fence of a cluster."""
        return str(slot_of(cluster, self.shards)) if self.by == "shard" else cluster

    def lease_name(self, key: str) -> str:
        """Return the name of a fence's Lease: `mcr-shard-17`, or `mcr-shard-<cluster>`."""
        return f"{self.prefix}-{key if self.by == 'shard' else _unique_name(key)}"


def require_prefix(prefix: str) -> None:
    """Raise ValueError if a text cannot start the name of a Lease, or be the value of a label."""
    if not DNS_LABEL.fullmatch(prefix):
        raise ValueError(f"prefix {prefix!r}: has to be a DNS-1123 label: a-z, 0-9, - inside, 63 at most")


def object_name(text: str) -> str:
    """Turn any text into a DNS-1123 subdomain, as upstream does: lower case, and - for other characters."""
    # In addition to upstream: a dot next to a dash or another dot is invalid in a name.
    name = _DOT.sub(".", _FORBIDDEN.sub("-", text.lower())).strip("-.")
    return name[:_LONGEST].rstrip("-.") or "unknown"


def _unique_name(text: str) -> str:
    """Turn a text into a unique DNS-1123 subdomain: two clusters must not share a fence."""
    name = object_name(text)
    if name == text and not _HASHED.fullmatch(text):
        return name
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
