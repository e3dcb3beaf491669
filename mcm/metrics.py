"""Series about instances, made anew at each scrape: a cluster that is gone has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from mcm.instances import Instance
from workloads import Phase

__all__ = ["InstanceCollector"]

_KIB: Final = 1024


class InstanceCollector(Collector):
    """Exports the instances: whether they are up, their restarts, their memory, and how many are in which state."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances

    @override
    def collect(self) -> Iterator[Metric]:
        """Count, and read the memory of each process."""
        up = GaugeMetricFamily("mcm_instance_up", "1 while the instance is healthy.", labels=["cluster"])
        restarts = CounterMetricFamily(
            "mcm_instance_restarts", "Starts of the instance after it ended by itself.", labels=["cluster"]
        )
        memory = GaugeMetricFamily(
            "mcm_instance_pss_bytes", "Proportional share of memory that the instance uses.", labels=["cluster"]
        )
        states = GaugeMetricFamily("mcm_clusters", "Clusters by the state of their instance.", labels=["state"])
        counts = dict.fromkeys(Phase, 0)
        for instance in self._instances:
            counts[instance.phase] += 1
            up.add_metric([instance.cluster], float(instance.phase is Phase.READY))
            restarts.add_metric([instance.cluster], instance.restarts)
            if instance.pid is not None and (pss := _pss_bytes(instance.pid)) is not None:
                memory.add_metric([instance.cluster], pss)
        for phase, count in counts.items():
            states.add_metric([phase.value], count)
        yield from (up, restarts, memory, states)


def _pss_bytes(pid: int) -> int | None:
    """Read the PSS of a process; None where it has ended meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    return next((int(line.split()[1]) * _KIB for line in rollup.splitlines() if line.startswith("Pss:")), None)
