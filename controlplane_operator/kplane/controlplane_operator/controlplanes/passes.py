"""A pass: one look at a control plane, and what each of its phases found."""

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
    """One look at a control plane: what each phase found, from which its status is made."""

    control_plane: ControlPlane
    followed: ClassInForce
    until_written: AsyncExitStack
    """Closed after the status is written."""
    home: Home | None
    """Where its data live, or are to live; None for those of an API server that kplane does not run."""
    stored: ControlPlane | None = None
    """As it was before this pass, if the last status of the pass is its first."""
    provisioner: Provisioner | None = None
    decision: Decision | None = None
    """Whether it sleeps."""
    claimed: str | None = None
    namespace_uid: str | None = None
    provision: Provision | None = None
    credentials: Credentials | None = None
    published: dict[str, Any] | None = None
    """Fields of the status, once all that they name is there."""
    behind: str = ""
    """Which replicas of the gateway do not serve it, in a sentence; others do."""
    again: Result | None = None
    failure: ConditionError | None = None

    @property
    def in_its_home(self) -> ControlPlane:
        """The control plane with a home, which the status has only when it is written down before anything is made."""
        return self.control_plane.at(self.home) if self.home is not None else self.control_plane

    @property
    def was_published(self) -> bool:
        """Whether users rely on it already."""
        return self.control_plane.status.endpoint is not None

    @property
    def is_asleep(self) -> bool:
        """Whether no API server was found to run, or was started."""
        return self.provision is not None and self.provision.asleep_as is not None

    @property
    def unready(self) -> ConditionError | None:
        """Why it is not Ready: a phase failed, or its set-up is incomplete."""
        return self.failure or (self.credentials.incomplete if self.credentials is not None else None)

    @property
    def ready(self) -> tuple[Reason, str]:
        """Reason and message of the condition Ready."""
        if self.unready is not None:
            return self.unready.reason, self.unready.message
        return Reason.RECONCILED, "; ".join(filter(None, ("the control plane is ready", self.behind)))
