"""Divides items among peers: weighted rendezvous hashing with bounded shares.

Every peer computes the same assignment from the same Leases, so no leader has to decide.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Mapping

__all__ = ["assign", "score", "slot_of"]

_BITS = 52
_SLACK = 1e-9


def slot_of(name: str, slots: int) -> int:
    """Return the slot of a name, which is stable across processes and versions."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % slots


def score(item: str, peer: str, weight: float) -> float:
    """Return the score of a peer for an item: the highest wins, with a probability by weight.

    It is `-w / ln(u)` with a hash u in (0, 1): weighted rendezvous hashing of Schindelhauer and Schomaker, 2005.
    """
    return weight * _draw(item, peer)


def assign(items: Collection[str], weights: Mapping[str, float], *, held: Mapping[str, str]) -> dict[str, str]:
    """Assign each item to a peer; each peer gets its share by weight, rounded down or up.

    An item in `held` stays with its peer while that peer is in `weights` and has no more than its share, so that no
    item moves without need. Free items go by score. Without held items the result is rendezvous hashing with a bound.
    Without the bound, the share of each of three peers would differ from a third of 64 shards by up to a quarter.
    """
    total, wanted = sum(weights.values()), set(items)
    room = {peer: math.floor(len(wanted) * weight / total + _SLACK) for peer, weight in weights.items()}
    # The remainder of the rounding goes to as many peers, one item each.
    extra = len(wanted) - sum(room.values())
    kept = [
        (score(item, peer, weights[peer]), item, peer)
        for item, peer in held.items()
        if peer in weights and item in wanted
    ]
    free = [(score(item, peer, weight), item, peer) for item in wanted for peer, weight in weights.items()]
    owners: dict[str, str] = {}
    for _, item, peer in (*sorted(kept, reverse=True), *sorted(free, reverse=True)):
        if item not in owners and (room[peer] > 0 or (room[peer] == 0 and extra > 0)):
            owners[item] = peer
            extra -= room[peer] == 0
            room[peer] -= 1
    return owners


@functools.lru_cache(maxsize=1 << 16)
def _draw(item: str, peer: str) -> float:
    # Names have no zero byte, so no two pairs have the same input to the hash.
    digest = hashlib.blake2b(f"{item}\0{peer}".encode(), digest_size=8).digest()
    # Take so few bits that the result is between 0 and 1, both excluded.
    number = int.from_bytes(digest, "big") >> (64 - _BITS)
    return -1.0 / math.log((number + 0.5) / (1 << _BITS))
