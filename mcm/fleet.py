"""The fleet at a glance, for health and metrics."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from mcm.instance import Instance
from mcm.instances import Instances
from provider import Clusters
from workloads import Phase

__all__ = ["ClusterSummary", "Fleet", "State"]

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
    pid: int | None = None
    restarts: int = 0
    message: str = ""
    exits: Mapping[str, int] = field(default_factory=dict)
    """How often it ended by itself, by the reason."""

    def to_json(self) -> dict[str, Any]:
        """All of it but the name."""
        document = asdict(self)
        del document["name"]
        return document


class Fleet:
    """Looks at clusters and instances; nothing is kept, so that nothing is told of what is gone."""

    def __init__(self, clusters: Clusters, *, instances: Instances) -> None:
        self._clusters = clusters
        self._instances = instances

    def summaries(self) -> list[ClusterSummary]:
        """Every cluster that is engaged or about to be, or whose instance is still ending; sorted by name."""
        running = self._instances.by_cluster
        described = {engagement.cluster.name: engagement.cluster for engagement in self._clusters.engagements()}
        summaries = []
        for name in sorted(described.keys() | running.keys()):
            if instance := running.get(name):
                summaries.append(self._summarize(instance))
            else:
                cluster = described[name]
                summaries.append(
                    ClusterSummary(
                        name=name,
                        state=State.PENDING,
                        profile=self._instances.profile(cluster),
                        server=cluster.config.server,
                        message=self._clusters.failure(name) or "",
                    )
                )
        return summaries

    def _summarize(self, instance: Instance) -> ClusterSummary:
        state = instance.state
        return ClusterSummary(
            name=instance.cluster.name,
            state=_STATES[state.phase],
            profile=self._instances.profile(instance.cluster),
            server=instance.cluster.config.server,
            pid=state.pid,
            restarts=state.restarts,
            message=instance.message[-_MESSAGE_LENGTH:],
            exits={str(reason): count for reason, count in sorted(instance.exits.items())},
        )


_STATES: Final = {
    Phase.ABSENT: State.PENDING,
    Phase.STARTING: State.STARTING,
    Phase.READY: State.READY,
    Phase.UNREADY: State.UNREADY,
    Phase.BACKOFF: State.BACKOFF,
    Phase.STOPPING: State.STOPPING,
    Phase.ENDED: State.PENDING,
}
