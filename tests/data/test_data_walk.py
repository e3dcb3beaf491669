"""Walks through the keys of a prefix, against a fake range of keys that counts like etcd."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field

import pytest

from kplane.data._proto import etcd_pb2 as pb
from kplane.data.walk import Walk

_PREFIX = "/clusters/acme/"
_ANSWER = 8 << 20


@dataclass
class Keys:
    """Counts keys up to the end of the range, like etcd. The connection refuses answers of over 8 MiB."""

    sizes: dict[bytes, int]
    """Bytes of each value."""
    counted: int = 0
    pages: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = sorted(self.sizes)

    def read(self, walk: Walk) -> list[bytes]:
        result = list[bytes]()
        while not walk.ended:
            start, end = bisect_left(self.keys, walk.start), bisect_left(self.keys, walk.end)
            self.counted += end - start
            page = self.keys[start : min(end, start + walk.limit)]
            if sum(self.sizes[key] for key in page) > _ANSWER:
                assert walk.halve()
                continue
            pairs = [pb.KeyValue(key=key, value=bytes(self.sizes[key])) for key in page]
            walk.advance(pb.RangeResponse(kvs=pairs, count=end - start, more=len(page) < end - start))
            result += page
            self.pages.append(len(page))
        return result


def _walk(*, most: int = 500) -> Walk:
    return Walk(_PREFIX, first=most, most=most, size=4 << 20)


def _key(text: str) -> bytes:
    return f"{_PREFIX}{text}".encode()


def test_walk_has_full_pages_again_after_large_values() -> None:
    keys = Keys(
        {_key(f"configmaps/default/{number:05}"): 1_450_000 if 20 <= number < 30 else 600 for number in range(9000)}
    )
    assert keys.read(_walk()) == keys.keys
    assert len(keys.pages) < 9000 / 500 + 25
    assert keys.pages[-3:-1] == [500, 500]


def test_walk_has_small_pages_while_values_are_large() -> None:
    keys = Keys({_key(f"secrets/a/{number:03}"): 1_450_000 for number in range(40)})
    assert keys.read(_walk()) == keys.keys
    assert set(keys.pages[:-1]) == {2, 3} | {keys.pages[0]}


@pytest.mark.parametrize("form", ["{number:06}", "{hexadecimal}", "namespace-{tenth}/object-{number}"])
def test_walk_counts_each_key_a_few_times_only(form: str) -> None:
    chance = random.Random(7)
    names = {
        form.format(number=number, tenth=number // 300, hexadecimal=chance.randbytes(16).hex())
        for number in range(50_000)
    }
    keys = Keys(
        {_key(f"configmaps/{name}"): 10 for name in names} | {_key(f"pods/{number}"): 10 for number in range(50)}
    )
    assert keys.read(_walk()) == keys.keys
    # With the same range end for all pages, etcd would count each key fifty times.
    assert keys.counted < 15 * len(keys.keys)
    assert len(keys.pages) < 2 * len(keys.keys) / 500


def test_walk_returns_each_key_once_for_all_key_lengths() -> None:
    chance = random.Random(3)
    for _ in range(4):
        keys = Keys(
            {
                _PREFIX.encode()
                + chance.choice([b"a", b"\xff", b"\0"]) * chance.randrange(1, 40)
                + chance.randbytes(3): 1
                for _ in range(11_000)
            }
        )
        assert keys.read(_walk(most=chance.choice([3, 20, 100]))) == keys.keys


def test_walk_with_limit_of_one_key_cannot_be_halved() -> None:
    walk = _walk(most=2)
    assert (walk.halve(), walk.limit) == (True, 1)
    assert (walk.halve(), walk.limit) == (False, 1)
