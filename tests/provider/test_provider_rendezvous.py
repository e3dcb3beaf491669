"""The distribution of names over peers, in numbers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from kplane.provider.coordination.rendezvous import assign, score, slot_of
from kplane.provider.coordination.shards import Layout, ShardTimings, object_name

NAMES = [f"cluster-{number}" for number in range(10_000)]
SCHEMES = ["mcm-{}", "mcm-{}.mcm.kplane.svc", "worker{}"]
"""Names of peers, as a StatefulSet names its pods."""
SHARDS = Layout("mcr-shard", "shard", 64)


def owned(weights: dict[str, float], layout: Layout = SHARDS) -> dict[str, float]:
    """Return the percentage of the names that each peer owns."""
    owners = assign(layout.keys(NAMES), weights, held={})
    counts = Counter(owners[layout.key_of(name)] for name in NAMES)
    return {peer: counts[peer] / len(NAMES) * 100 for peer in weights}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layout", [SHARDS, Layout("mcr-shard", "cluster", 64)], ids=str)
def test_three_peers_own_a_third_each(scheme: str, layout: Layout) -> None:
    """Criterion 67: the parts are equal within 3 per cent. FNV gives 25, 25 and 50 (D6)."""
    for part in owned({scheme.format(number): 1 for number in range(3)}, layout).values():
        assert part == pytest.approx(100 / 3, abs=3)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_peers_own_parts_by_weight(scheme: str) -> None:
    """Criterion 67: weights 1 and 3 give 25 and 75. Upstream overflows, so that any weights give halves (D6)."""
    small, large = owned({scheme.format(0): 1, scheme.format(1): 3}).values()
    assert (small, large) == (pytest.approx(25, abs=3), pytest.approx(75, abs=3))
    assert max(owned({scheme.format(0): 1, scheme.format(1): (1 << 32) - 1}).values()) > 98


@pytest.mark.parametrize("scheme", SCHEMES)
def test_score_distributes_names_by_weight(scheme: str) -> None:
    """Criterion 67: the hash is fair without the bound that 64 shards need."""
    weights = {scheme.format(number): number + 1.0 for number in range(3)}
    won = Counter(max(weights, key=lambda peer: score(name, peer, weights[peer])) for name in NAMES)
    for peer, weight in weights.items():
        assert won[peer] / len(NAMES) == pytest.approx(weight / 6, abs=0.015)


def test_six_peers_own_equal_parts() -> None:
    """D6: upstream gives two of six peers twice the part of the other peers."""
    assert all(part == pytest.approx(100 / 6, abs=2) for part in owned({f"mcm-{n}": 1 for n in range(6)}).values())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_assign_moves_no_key_between_remaining_peers(scheme: str) -> None:
    keys, peers = SHARDS.keys([]), [scheme.format(number) for number in range(4)]
    held: dict[str, str] = {}
    for present in (1, 3, 2, 4, 3, 1):
        weights = dict.fromkeys(peers[:present], 1.0)
        owners = assign(keys, weights, held=held)
        moved = [key for key in held if held[key] != owners[key]]
        givers, takers = {held[key] for key in moved}, {owners[key] for key in moved}
        gone = set(held.values()) - weights.keys()
        assert givers == gone if gone else not givers & takers
        counts = Counter(owners.values())
        assert set(counts) == set(weights)
        assert max(counts.values()) - min(counts.values()) <= 1
        held = owners


def test_assign_is_stable_during_a_handover() -> None:
    """The assignment stays equal at each step, so that no peer takes a shard which it has to release again."""
    keys, weights = SHARDS.keys([]), {"a": 1.0, "b": 1.0, "c": 2.0}
    held = dict.fromkeys(keys, "a")
    goal = assign(keys, weights, held=held)
    for key in [key for key in keys if goal[key] != "a"]:
        free = {other: holder for other, holder in held.items() if other != key}
        assert assign(keys, weights, held=free) == goal
        held[key] = goal[key]
        assert assign(keys, weights, held=held) == goal


def test_assign_ignores_order_of_keys_and_weights() -> None:
    keys, weights = SHARDS.keys([]), {"a": 1.0, "b": 2.0, "c": 3.0}
    turned = dict(reversed(weights.items()))
    assert assign(keys, weights, held={}) == assign(keys[::-1], turned, held={})


def test_assign_moves_keys_of_missing_peers() -> None:
    owners = assign(["0", "1"], {"here": 1.0}, held={"0": "gone", "1": "here"})
    assert owners == {"0": "here", "1": "here"}
    assert assign([], {"here": 1.0}, held={"0": "here"}) == {}


def test_slot_of_is_stable_across_versions() -> None:
    """The hash must never change: two versions of this program work at the same time during an update."""
    assert [slot_of(name, 64) for name in ("", "a", "ns/name", "prod#eu-1")] == [52, 47, 52, 57]


def test_lease_names_of_clusters_are_unique() -> None:
    layout = Layout("mcr-shard", "cluster", 64)
    names = ["zoo", "Zoo", "a/b", "a-b", "a.b", "", "x" * 300, "x" * 301, "é", "-", "a.-b", "../..", "local"]
    # Names that equal the Lease name suffix of another cluster.
    names += [layout.lease_name(name).removeprefix("mcr-shard-") for name in names if name != "zoo"]
    leases = {layout.lease_name(name) for name in dict.fromkeys(names)}
    assert len(leases) == len(dict.fromkeys(names))
    assert layout.lease_name("zoo") == "mcr-shard-zoo"
    assert all(len(lease) <= 253 for lease in leases)
    assert SHARDS.lease_name(SHARDS.key_of("zoo")).startswith("mcr-shard-")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Node-1.Example", "node-1.example"),
        ("_x_", "x"),
        ("a_b", "a-b"),
        ("a.-b", "a.b"),
        ("", "unknown"),
        ("--", "unknown"),
    ],
)
def test_object_name_is_equal_to_upstream(text: str, name: str) -> None:
    assert object_name(text) == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"renew_seconds": 15.0},
        {"drain_seconds": 0.4},
        {"retry_seconds": 0.0},
        {"probe_seconds": 0.0},
        {"peer_renew_seconds": 30.0},
        {"peer_seconds": 19},
        {"handover_seconds": -1.0},
        {"renew_seconds": -1.0},
    ],
    ids=str,
)
def test_shard_timings_refuse_inconsistent_durations(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"has to|have to|must not"):
        ShardTimings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        ("", "shard", 64),
        ("Mcr", "shard", 64),
        ("a" * 64, "shard", 64),
        ("a", "pod", 64),
        ("a", "shard", 0),
        ("a", "shard", 5000),
    ],
)
def test_layout_refuses_invalid_values(wrong: tuple[str, str, int]) -> None:
    with pytest.raises(ValueError, match="has to be"):
        Layout(*wrong)  # type: ignore[arg-type]


def test_score_differs_for_each_pair_of_name_and_peer() -> None:
    scores = {score(item, peer, 1.0) for item, peer in itertools.product("abc", ("b", "bc", "c"))}
    assert len(scores) == 9
