"""Provider of the Cluster Inventory API."""

from __future__ import annotations

from kplane.provider.providers.inventory.access import AccessProviders
from kplane.provider.providers.inventory.provider import (
    CLUSTER_IDS,
    CLUSTER_PROFILES,
    ClusterInventoryProvider,
    control_plane_healthy,
)

__all__ = ["CLUSTER_IDS", "CLUSTER_PROFILES", "AccessProviders", "ClusterInventoryProvider", "control_plane_healthy"]
