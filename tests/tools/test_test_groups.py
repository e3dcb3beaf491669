"""pytest-xdist runs all tests of a group in the same process."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("one")
def test_node_id_ends_with_xdist_group(request: pytest.FixtureRequest) -> None:
    """The scheduler reads the group from the test id. Without a group, each process repeats module fixtures."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@one")
