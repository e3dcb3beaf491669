"""Clusters from the Cluster Inventory API."""

from __future__ import annotations

from kplane.provider.providers.inventory.provider import (
    CLUSTER_PROFILES,
    ClusterInventoryProvider,
    control_plane_healthy,
)

__all__ = ["CLUSTER_PROFILES", "ClusterInventoryProvider", "control_plane_healthy"]
