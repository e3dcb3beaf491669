"""Overview of all clusters and their instances, for health and metrics."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kplane.mcm.describe.kinds import fingerprint
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.lifecycle import Instance, Target
from kplane.mcm.reasons import Reason
from kplane.mcm.status.report import foremost, shorten
from kplane.provider import LOCAL
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Phase

__all__ = ["ClusterSummary", "Overview", "State"]

_MESSAGE_LENGTH: Final = 2000


class State(enum.StrEnum):
    """State of the instance of a cluster."""

    PENDING = "Pending"
    """The instance does not run: it was not started yet, or cannot start."""
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACKOFF = "Backoff"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """Summary of a cluster and its instances."""

    name: str
    state: State
    profile: str
    server: str
    version: str | None = None
    """Version of the program, such as v1.36.3; None if unknown."""
    generation: int | None = None
    """Generation of the engagement: higher for each new engagement of the cluster."""
    configuration: str | None = None
    """Hash of the configuration of the cluster's instances; None before their first start."""
    pid: int | None = None
    restarts: int = 0
    message: str = ""
    """Present problem; empty if there is none."""
    last_error: str = ""
    """Last problem, also if it is over."""
    exits: Mapping[str, int] = field(default_factory=dict)
    """Number of times that processes ended by themselves, by reason."""
    others: tuple[tuple[str, int | None], ...] = ()
    """Programs of the further instances, each with the ID of its process."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the name."""
        document = asdict(self)
        del document["name"]
        document["lastError"] = document.pop("last_error")
        others = dict(document.pop("others"))
        return document | ({"others": others} if others else {})

    @property
    def pids(self) -> list[int]:
        """IDs of all processes."""
        return [pid for pid in (self.pid, *(pid for _, pid in self.others)) if pid is not None]


class Overview:
    """Reads the state of clusters and instances. It keeps no state, so ended clusters never show up."""

    def __init__(
        self, clusters: Clusters, *, instances: Instances, mine: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`mine` returns whether this process owns a cluster. Other clusters show up only while their instances end."""
        self._clusters = clusters
        self._instances = instances
        self._mine = mine

    def summaries(self) -> list[ClusterSummary]:
        """Return a summary of each owned cluster and of each cluster with an instance, sorted by name."""
        running = self._instances.groups
        clusters = (engagement.cluster for engagement in self._clusters.engagements())
        # The management cluster is among the manager's clusters too, and has no instance.
        described = {
            candidate.name: candidate
            for candidate in clusters
            if candidate.name != LOCAL and self._mine(candidate.name)
        }
        summaries = []
        for name in sorted(described.keys() | running.keys()):
            if instances := running.get(name):
                summaries.append(self._summarize(instances))
            else:
                cluster = described[name]
                summaries.append(
                    ClusterSummary(
                        name=name,
                        state=State.PENDING,
                        profile=self._instances.profile(cluster),
                        server=cluster.config.server,
                        message=(failure := self._clusters.failure(name) or ""),
                        last_error=failure,
                    )
                )
        return summaries

    def targets(self) -> list[Target]:
        """Return the addresses of the metrics of all ready instances."""
        return [target for instance in self._instances.all() if (target := instance.target) is not None]

    def _summarize(self, instances: Sequence[Instance]) -> ClusterSummary:
        first, shown = instances[0], foremost(instances)
        message = shown.message
        if message and shown is not first:
            message = f"{shown.kind.program}: {message}"
        exits: Counter[Reason] = Counter()
        for instance in instances:
            exits.update(instance.exits)
        return ClusterSummary(
            name=first.cluster.name,
            state=_STATES[shown.process.phase],
            profile=self._instances.profile(first.cluster),
            server=first.cluster.config.server,
            version=first.version,
            generation=first.generation,
            configuration=_configuration(instances),
            pid=first.process.pid,
            restarts=sum(instance.process.restarts for instance in instances),
            message=shorten(message, length=_MESSAGE_LENGTH),
            last_error=shorten(shown.message or shown.last_error, length=_MESSAGE_LENGTH),
            exits={str(reason): count for reason, count in sorted(exits.items())},
            others=tuple((instance.kind.program, instance.process.pid) for instance in instances[1:]),
        )


def _configuration(instances: Sequence[Instance]) -> str | None:
    described = [instance.described for instance in instances if instance.described is not None]
    return fingerprint(described) if len(described) == len(instances) else None


_STATES: Final = {
    Phase.ABSENT: State.PENDING,
    Phase.STARTING: State.STARTING,
    Phase.READY: State.READY,
    Phase.UNREADY: State.UNREADY,
    Phase.BACKOFF: State.BACKOFF,
    Phase.STOPPING: State.STOPPING,
    Phase.ENDED: State.PENDING,
}
