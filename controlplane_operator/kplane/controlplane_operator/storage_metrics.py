"""Prometheus metrics of the storage of control planes in the shared etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import Usage

__all__ = ["StorageMetrics"]


class StorageMetrics(Collector):
    """Reads the caches at each scrape, so that deleted control planes leave no series behind."""

    def __init__(self, stores: Stores, *, usage: Callable[[str], Usage | None]) -> None:
        """Create the collector; `usage` returns the last measurement of the control plane with a uid."""
        self._stores = stores
        self._usage = usage

    @override
    def collect(self) -> Iterable[Metric]:
        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"kplane_control_plane_storage_{name}", text, labels=["control_plane"])

        keys = family("keys", "Keys of a control plane in the shared etcd")
        size = family("bytes", "Bytes of the keys and present values of a control plane in the shared etcd")
        quota = family("quota_bytes", "The storage quota of a control plane that has one")
        for obj in self._stores.control_planes:
            metadata, recorded = obj["metadata"], (obj.get("status") or {}).get("storage")
            if recorded is None:
                continue
            # Before its first measurement, this operator exports the values that the former operator recorded.
            measured = self._usage(metadata["uid"]) or Usage(recorded["keys"], recorded["bytes"])
            keys.add_metric([metadata["name"]], measured.keys)
            size.add_metric([metadata["name"]], measured.bytes)
            if "quotaBytes" in recorded:
                quota.add_metric([metadata["name"]], recorded["quotaBytes"])
        yield from (keys, size, quota)
