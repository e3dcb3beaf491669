"""Trial of a scheduling: pods of the API server try the nodes of a class before etcd and mcm follow.

The next pod of a Deployment is ready before the previous pod ends. So a mistake in a class stops no API server. A
StatefulSet ends its pod before the next pod starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from kplane.workloads import ComponentState, Phase, Runtime, Scheduling

__all__ = ["SchedulingTrial", "try_scheduling"]


@dataclass(frozen=True, slots=True)
class SchedulingTrial:
    """Scheduling under trial, with its effect on the pods of the API server."""

    scheduling: Scheduling | None
    passed: bool = True
    """Whether all pods of the API server have this scheduling, or no API server exists."""
    failing: bool = False
    """Whether a pod of the API server has no node."""

    def holds(self, state: ComponentState) -> bool:
        """Return whether the component with this state must keep its present scheduling.

        A component that is not ready may change, unless pods of the API server find no node with the new scheduling.
        """
        return not self.passed and (state.phase is Phase.READY or self.failing)


def try_scheduling(runtime: Runtime, api_server: str, scheduling: Scheduling | None) -> SchedulingTrial:
    """Return the trial of a scheduling. Component `api_server` gets the new scheduling in any case."""
    state = runtime.state(api_server)
    passed = state.phase is Phase.ABSENT or runtime.placed(api_server, scheduling)
    return SchedulingTrial(scheduling, passed=passed, failing=state.unplaced)
