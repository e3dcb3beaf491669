"""How a replica of the gateway says that it is there."""

from __future__ import annotations

from pathlib import Path

from kplane.gateway.presence import replica_of


def test_gateways_of_one_machine_have_names_of_their_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    assert replica_of(one) != replica_of(two)
    assert replica_of(one) == replica_of(one)
