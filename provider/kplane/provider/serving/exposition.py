"""Metrics that were collected before, as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

__all__ = ["process_families", "render_families"]


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    @override
    def collect(self) -> Iterable[Metric]:
        return self._families


def process_families() -> Iterable[Metric]:
    """What the system says of this process: CPU, memory, open files."""
    return ProcessCollector(registry=None).collect()


def render_families(families: Iterable[Metric]) -> bytes:
    """Return the text format of them, in their order."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)
