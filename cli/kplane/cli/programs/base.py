"""Interface to the programs of kplane, independent of the way in which they run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kplane.api import ControlPlaneRegistration
from kplane.mcm.describe.kinds import InstanceKind

__all__ = ["Log", "Program", "Programs", "Replica"]


class Program(StrEnum):
    """Programs of kplane."""

    OPERATOR = "operator"
    MCM = "mcm"
    GATEWAY = "gateway"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Pod or process of a program."""

    program: Program
    name: str
    """Name of the pod or process, unique among all replicas."""
    problem: str = ""
    """Reason why the replica is not ready; empty if it is ready."""
    version: str = ""
    """Version of kplane; empty if it is unknown."""
    look: str = ""
    """Command that shows more."""


class Log(Protocol):
    """Log of a program."""

    @property
    def name(self) -> str:
        """Name that distinguishes the log from other logs of the same program."""
        ...

    @property
    def note(self) -> str:
        """Note for the reader of the log; empty if there is none."""
        ...

    @property
    def silence(self) -> str:
        """Reason why the log may have no lines; empty if there is none."""
        ...

    def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the last lines, or all if `last` is None. With `follow`, then yield each new line without an end."""
        ...


class Programs(Protocol):
    """Programs of kplane of a management cluster.

    Methods raise `kplane.provider.ProviderError` if a program, or the API server before it, refuses or does not answer.
    """

    @property
    def place(self) -> str:
        """Location of the programs, in words."""
        ...

    @property
    def namespace(self) -> str | None:
        """Namespace of the pods; None if the programs are not pods."""

    @property
    def required(self) -> Sequence[Program]:
        """Programs that must run."""
        ...

    @property
    def start(self) -> str:
        """Command that starts missing programs, or shows why they do not run."""
        ...

    @property
    def upgrade(self) -> str:
        """Command that upgrades the programs to the version of this package."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Return all replicas, sorted by program and name."""
        ...

    async def ask(self, replica: Replica, path: str) -> str:
        """Return the answer of a replica to a path of its `--listen` address, such as `/metrics`."""
        ...

    def log(self, replica: Replica) -> Log:
        """Return the log of a replica."""
        ...

    async def component_logs(self, component: str, *, namespace: str) -> Sequence[Log]:
        """Return the logs of a component of the control plane with this namespace; empty if it does not run."""
        ...

    async def instance_logs(self, registration: ControlPlaneRegistration, *, kind: InstanceKind) -> Sequence[Log]:
        """Return the logs of the instance of a registration; empty if it does not run."""
        ...

    async def memory(self) -> Mapping[str, int]:
        """Return bytes of memory by component of control planes. Components of unknown size are left out."""
        ...
