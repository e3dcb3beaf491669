"""How a control plane gets its API server: one protocol, a strategy for each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kplane.api import ControlPlane, DeletionPolicy, KubernetesVersion
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.pki.authorities import TenantAuthorities
from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.controlplane_operator.status.reasons import Reason
from kplane.provider import ClusterConfig

__all__ = ["Provision", "Provisioner", "VersionLag"]


@dataclass(frozen=True, slots=True)
class VersionLag:
    """Why an API server that serves is not what its control plane asks for: a reason and a sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Provision:
    """An API server that serves a control plane, and how to get in as its administrator."""

    addresses: Addresses
    administrator: ClusterConfig
    authorities: TenantAuthorities | None
    """None where somebody else runs the API server, and so keeps its keys."""
    controllers: KeyPair | None = None
    """Client certificate of the controllers; None where they get a token."""
    settled: bool = True
    """Nothing of an earlier description runs any more: `authorities` are those of every program, and the version that
    the API server says is that of all of it.
    """
    asked: KubernetesVersion | None = None
    """The version that the API server is to have, where somebody asked for one."""
    lag: VersionLag | None = None


class Provisioner(Protocol):
    """One way to an API server. Every call may be repeated, and goes on where an earlier one was cut off."""

    def address(self, control_plane: ControlPlane) -> str | None:
        """Name what the control plane is to have for itself; None where nobody else could have it, or not known yet."""
        ...

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Have an API server run that answers. Raises ConditionError while it does not."""
        ...

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Tell whether there are data that kplane keeps for the control plane. Raises ConditionError where that is
        unknown."""
        ...

    async def shut_out(self, uid: str) -> None:
        """Take away what access to the data an earlier control plane had, whose uid this is. Raises ConditionError."""
        ...

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """Have what was issued be worth nothing, and what `ensure` started end. Raises ConditionError while not
        done."""
        ...

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """After `shut_down`: delete the data, or leave them in order, by the policy. Raises ConditionError while not
        done."""
        ...
