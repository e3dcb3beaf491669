"""Requests for reconciles from the operator's own code, such as the end of a job, by controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from kplane.provider import LOCAL, Request
from kplane.provider.controllers.sources import Channel

__all__ = ["Trigger", "Triggers"]


class Trigger:
    """Requests reconciles of one controller. Each of its objects has no namespace."""

    def __init__(self) -> None:
        self.channel = Channel[Request]()

    def add(self, name: str, *, seconds: float = 0.0) -> None:
        """Request a reconcile of the object with this name, in `seconds`."""
        self.channel.put(Request(LOCAL, "", name), seconds)


@dataclass(frozen=True, slots=True)
class Triggers:
    """The trigger of each controller that the operator's own code triggers."""

    control_planes: Trigger = field(default_factory=Trigger)
    registrations: Trigger = field(default_factory=Trigger)
    mcms: Trigger = field(default_factory=Trigger)
    """For registrations that may have a dedicated mcm."""
    snapshots: Trigger = field(default_factory=Trigger)
    probes: Trigger = field(default_factory=Trigger)
    """For control planes whose published credentials to probe."""
