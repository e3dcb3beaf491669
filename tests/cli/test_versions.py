"""Comparison of versions."""

from __future__ import annotations

import itertools

import pytest

from kplane.cli.versions import is_newer

ASCENDING = (
    "0.1.0.dev3",
    "0.1.0a1",
    "0.1.0-beta.2",
    "0.1.0rc1",
    "0.1.0-rc.2",
    "0.1.0",
    "0.1.1",
    "0.2.0",
    "0.10.0",
    "1.0",
)


@pytest.mark.parametrize(("older", "newer"), [*itertools.combinations(ASCENDING, 2)])
def test_is_newer_orders_versions(older: str, newer: str) -> None:
    assert is_newer(newer, older)
    assert not is_newer(older, newer)


@pytest.mark.parametrize(("one", "two"), [("0.1.0", "0.1"), ("v0.1.0", "0.1.0"), ("0.1.0+x", "0.1.0"), ("2", "main")])
def test_equal_and_invalid_versions_are_not_newer(one: str, two: str) -> None:
    assert not is_newer(one, two)
    assert not is_newer(two, one)
