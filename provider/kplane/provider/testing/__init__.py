"""Tools for tests of reconcilers without a cluster; see docs/multicluster/test.md."""

from __future__ import annotations

from kplane.provider.testing.cluster import FakeCluster
from kplane.provider.testing.steered import SteeredLoop
from kplane.provider.testing.waiting import eventually

__all__ = ["FakeCluster", "SteeredLoop", "eventually"]
