"""Where the pods of control planes run, in the words of Kubernetes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from kplane.api.extensions import ATOMIC_LIST
from kplane.api.references import ObjectName
from kplane.api.resource import ApiModel

__all__ = ["PodScheduling", "TaintEffect", "Toleration", "TolerationOperator", "TopologySpread", "WhenUnsatisfiable"]

_LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=316)]
_LabelValue = Annotated[str, StringConstraints(max_length=63)]


class TolerationOperator(StrEnum):
    """How a toleration is compared with a taint."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class WhenUnsatisfiable(StrEnum):
    """What becomes of a pod that would not be spread as asked for."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class Toleration(ApiModel):
    """A taint of nodes that pods tolerate."""

    key: Annotated[str, StringConstraints(max_length=316)] | None = None
    """Key of the taint; absent, with operator Exists, for every taint."""
    operator: TolerationOperator | None = None
    """Equal (default) compares the value, Exists does not."""
    value: _LabelValue | None = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Effect of the taint; absent for every effect."""
    toleration_seconds: int | None = None
    """How long a taint of effect NoExecute is tolerated; absent for ever."""


class TopologySpread(ApiModel):
    """How evenly the pods of one component are spread; the pods that count are that component's own."""

    max_skew: Annotated[int, Field(ge=1)] = 1
    """By how many pods two domains may differ."""
    topology_key: _LabelKey
    """Label of nodes that tells the domains apart, such as topology.kubernetes.io/zone."""
    when_unsatisfiable: WhenUnsatisfiable = WhenUnsatisfiable.SCHEDULE_ANYWAY
    """ScheduleAnyway prefers it, DoNotSchedule insists on it."""


class PodScheduling(ApiModel):
    """Which nodes pods run on, and which pods go before others."""

    node_selector: Annotated[dict[str, _LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels that a node has to have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32), ATOMIC_LIST] = Field(default_factory=list)
    """Taints of nodes that pods tolerate."""
    affinity: dict[str, Any] = Field(default_factory=dict)
    """Affinity and anti-affinity, as in the spec of a Pod."""
    priority_class_name: ObjectName | None = None
    """Name of the PriorityClass; absent for the cluster's default."""
    topology_spread_constraints: Annotated[list[TopologySpread], Field(max_length=8), ATOMIC_LIST] | None = None
    """How several pods of one component are spread; absent for evenly over nodes and zones where that can be."""
