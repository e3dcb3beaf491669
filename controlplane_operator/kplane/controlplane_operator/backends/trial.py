"""Whether pods can run where a class puts them, which the API server shows before etcd and mcm follow.

The next pod of a Deployment is ready before the last one goes, so a mistake in a class takes no API server down. A
StatefulSet has no such pod to spare: the last one ends first.
"""

from __future__ import annotations

from dataclasses import dataclass

from kplane.workloads import ComponentState, Phase, Runtime, Scheduling

__all__ = ["SchedulingTrial", "try_scheduling"]


@dataclass(frozen=True, slots=True)
class SchedulingTrial:
    """A scheduling, and what the pods of the API server show of it."""

    scheduling: Scheduling | None
    passed: bool = True
    """All pods of the API server run scheduled like this, or there is no API server."""
    failing: bool = False
    """A pod of the API server has no node."""

    def holds(self, state: ComponentState) -> bool:
        """Tell whether the component with this state keeps the scheduling that it has.

        A component that is not ready has nothing to lose, unless its next pod would find no node either.
        """
        return not self.passed and (state.phase is Phase.READY or self.failing)


def try_scheduling(runtime: Runtime, api_server: str, scheduling: Scheduling | None) -> SchedulingTrial:
    """Look at the API server, a component, which gets the scheduling in any case."""
    state = runtime.state(api_server)
    passed = state.phase is Phase.ABSENT or runtime.placed(api_server, scheduling)
    return SchedulingTrial(scheduling, passed=passed, failing=state.unplaced)
