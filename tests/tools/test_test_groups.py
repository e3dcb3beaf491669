"""pytest-xdist keeps the tests of one group in one process."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("one")
def test_a_test_has_its_group_in_its_id(request: pytest.FixtureRequest) -> None:
    """Its scheduler reads the group from there. Without it each process makes the fixtures of a module once more."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@one")
