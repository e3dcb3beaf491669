"""A prefix never covers keys of a neighbour."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kplane.data import InvalidPrefix
from kplane.data.prefix import checked, range_end


@pytest.mark.parametrize("prefix", ["/a/", "/clusters/a/", "/clusters/a-b/registry/", "/ä/"])
def test_checked_accepts_prefix_with_names_between_slashes(prefix: str) -> None:
    assert checked(prefix) == prefix.encode()


@pytest.mark.parametrize("prefix", ["", "/", "//", "/a", "a/", "a", "/clusters//", "//a/", "/a/\0/", "/clusters/a"])
def test_checked_refuses_invalid_prefix(prefix: str) -> None:
    with pytest.raises(InvalidPrefix, match="is not a prefix"):
        checked(prefix)


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=5))
@example(b"/a/", b"/a0")
@example(b"a\xff", b"b")
@example(b"a\xff\xff", b"a\xff\xff\xff")
def test_range_end_covers_exactly_keys_of_prefix(prefix: bytes, key: bytes) -> None:
    if not prefix.strip(b"\xff"):
        with pytest.raises(InvalidPrefix):
            range_end(prefix)
        return
    assert (prefix <= key < range_end(prefix)) == key.startswith(prefix)


def test_range_end_refuses_empty_prefix() -> None:
    with pytest.raises(InvalidPrefix):
        range_end(b"")
