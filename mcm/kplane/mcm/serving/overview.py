"""All clusters and their instances at a glance, for health and metrics."""

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
    """Where the instance of a cluster is."""

    PENDING = "Pending"
    """It does not run: not started yet, or it cannot be."""
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    BACKOFF = "Backoff"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSummary:
    """One cluster and its instance."""

    name: str
    state: State
    profile: str
    server: str
    version: str | None = None
    """Of the program, such as v1.36.3; None if it is not known."""
    generation: int | None = None
    """Higher each time that another cluster, or another description that ends its instances, is engaged."""
    configuration: str | None = None
    """Tells the effective configuration of its instances from any other one; None before their first start."""
    pid: int | None = None
    restarts: int = 0
    message: str = ""
    """What is wrong now; empty if nothing is."""
    last_error: str = ""
    """What was wrong last, also where that is over."""
    exits: Mapping[str, int] = field(default_factory=dict)
    """How often its instances ended by themselves, by the reason."""
    others: tuple[tuple[str, int | None], ...] = ()
    """Programs of its further instances, each with its process."""

    def to_json(self) -> dict[str, Any]:
        """All of it but the name."""
        document = asdict(self)
        del document["name"]
        document["lastError"] = document.pop("last_error")
        others = dict(document.pop("others"))
        return document | ({"others": others} if others else {})

    @property
    def pids(self) -> list[int]:
        """Of all processes."""
        return [pid for pid in (self.pid, *(pid for _, pid in self.others)) if pid is not None]


class Overview:
    """Looks at clusters and instances; nothing is kept, so that nothing is told of what is gone."""

    def __init__(
        self, clusters: Clusters, *, instances: Instances, mine: Callable[[str], bool] = lambda _: True
    ) -> None:
        """`mine` tells whether a cluster is this process's business; of others only ends of instances are told."""
        self._clusters = clusters
        self._instances = instances
        self._mine = mine

    def summaries(self) -> list[ClusterSummary]:
        """Every cluster that is engaged or about to be, or whose instance is still ending; sorted by name."""
        running = self._instances.groups
        clusters = (engagement.cluster for engagement in self._clusters.engagements())
        # The management cluster is one of the manager's clusters too, and no instance is meant for it.
        described = {each.name: each for each in clusters if each.name != LOCAL and self._mine(each.name)}
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
        """Where the metrics of the instances are that are ready."""
        return [target for each in self._instances.all() if (target := each.target) is not None]

    def _summarize(self, instances: Sequence[Instance]) -> ClusterSummary:
        first, shown = instances[0], foremost(instances)
        message = shown.message
        if message and shown is not first:
            message = f"{shown.kind.program}: {message}"
        exits: Counter[Reason] = Counter()
        for each in instances:
            exits.update(each.exits)
        return ClusterSummary(
            name=first.cluster.name,
            state=_STATES[shown.process.phase],
            profile=self._instances.profile(first.cluster),
            server=first.cluster.config.server,
            version=first.version,
            generation=first.generation,
            configuration=_configuration(instances),
            pid=first.process.pid,
            restarts=sum(each.process.restarts for each in instances),
            message=shorten(message, length=_MESSAGE_LENGTH),
            last_error=shorten(shown.message or shown.last_error, length=_MESSAGE_LENGTH),
            exits={str(reason): count for reason, count in sorted(exits.items())},
            others=tuple((each.kind.program, each.process.pid) for each in instances[1:]),
        )


def _configuration(instances: Sequence[Instance]) -> str | None:
    described = [each.described for each in instances if each.described is not None]
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
