"""Scheduling of the pods of control planes, in the terms of Kubernetes."""

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
    """Comparison of a toleration with a taint."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class WhenUnsatisfiable(StrEnum):
    """Treatment of a pod that would violate a spread constraint."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class Toleration(ApiModel):
    """A taint of nodes that pods tolerate."""

    key: Annotated[str, StringConstraints(max_length=316)] | None = None
    """Key of the taint; absent, with operator Exists, for every taint."""
    operator: TolerationOperator | None = None
    """Equal (default) compares the value, Exists ignores it."""
    value: _LabelValue | None = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Effect of the taint; absent for every effect."""
    toleration_seconds: int | None = None
    """The number of seconds that a taint of effect NoExecute is tolerated; absent for no limit."""


class TopologySpread(ApiModel):
    """Spread of the pods of a component; only pods of the same component are counted."""

    max_skew: Annotated[int, Field(ge=1)] = 1
    """The maximum difference in the number of pods between two domains."""
    topology_key: _LabelKey
    """Label of nodes whose values are the domains, such as topology.kubernetes.io/zone."""
    when_unsatisfiable: WhenUnsatisfiable = WhenUnsatisfiable.SCHEDULE_ANYWAY
    """ScheduleAnyway prefers nodes that satisfy the constraint, DoNotSchedule requires them."""


class PodScheduling(ApiModel):
    """Nodes for the pods, and priority of the pods."""

    node_selector: Annotated[dict[str, _LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=32), ATOMIC_LIST] = Field(default_factory=list)
    """Taints of nodes that pods tolerate."""
    affinity: dict[str, Any] = Field(default_factory=dict)
    """Affinity and anti-affinity, as in the spec of a Pod."""
    priority_class_name: ObjectName | None = None
    """Name of the PriorityClass; absent for the cluster's default."""
    topology_spread_constraints: Annotated[list[TopologySpread], Field(max_length=8), ATOMIC_LIST] | None = None
    """Spread of several pods of a component; absent to prefer an even spread over nodes and zones."""
