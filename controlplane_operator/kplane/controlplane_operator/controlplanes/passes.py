"""A pass: one reconcile of a control plane, with the outcome of each phase."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from kplane.api import ControlPlane, Home
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision, Provisioner
from kplane.controlplane_operator.class_policy import ClassInForce
from kplane.controlplane_operator.controlplanes.credentials import Credentials
from kplane.controlplane_operator.hibernation.decision import Decision
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import Result

__all__ = ["Pass"]


@dataclass(slots=True)
class Pass:
    """State of one reconcile of a control plane: the outcomes of its phases, from which the status is made."""

    control_plane: ControlPlane
    followed: ClassInForce
    until_written: AsyncExitStack
    """Contexts that stay open until the status is written."""
    home: Home | None
    """Present or planned home of the data; None for an API server that kplane does not run."""
    stored: ControlPlane | None = None
    """The control plane before this pass, if the last status of the pass is also its first."""
    provisioner: Provisioner | None = None
    decision: Decision | None = None
    """Decision about the sleep of the control plane."""
    claimed: str | None = None
    namespace_uid: str | None = None
    provision: Provision | None = None
    credentials: Credentials | None = None
    published: dict[str, Any] | None = None
    """Published fields of the status; set once all objects that they name exist."""
    behind: str = ""
    """Sentence that names the replicas of the gateway that do not serve the control plane yet, while others do."""
    again: Result | None = None
    failure: ConditionError | None = None

    @property
    def in_its_home(self) -> ControlPlane:
        """The control plane with its home.

        The status has the home only if it is written before the first object is made.
        """
        return self.control_plane.at(self.home) if self.home is not None else self.control_plane

    @property
    def was_published(self) -> bool:
        """Whether the control plane has been published before, so that users rely on it."""
        return self.control_plane.status.endpoint is not None

    @property
    def is_asleep(self) -> bool:
        """Whether the control plane sleeps, so that no API server runs."""
        return self.provision is not None and self.provision.asleep_as is not None

    @property
    def unready(self) -> ConditionError | None:
        """The failure that keeps the control plane from being Ready: of a phase, or of an incomplete set-up."""
        return self.failure or (self.credentials.incomplete if self.credentials is not None else None)

    @property
    def ready(self) -> tuple[Reason, str]:
        """Reason and message of condition Ready."""
        if self.unready is not None:
            return self.unready.reason, self.unready.message
        return Reason.RECONCILED, "; ".join(filter(None, ("the control plane is ready", self.behind)))
