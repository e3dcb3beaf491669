"""What is asked of the programs of kplane, however they run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kplane.api import ControlPlaneRegistration
from kplane.mcm.describe.kinds import InstanceKind

__all__ = ["Log", "Program", "Programs", "Replica"]


class Program(StrEnum):
    """The programs that kplane consists of."""

    OPERATOR = "operator"
    MCM = "mcm"
    GATEWAY = "gateway"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One pod or process of a program."""

    program: Program
    name: str
    """Of the pod or process, unique among all replicas."""
    problem: str = ""
    """Why it is not ready; empty if it is."""
    version: str = ""
    """Of kplane; empty if it is not known."""
    look: str = ""
    """The command that shows more."""


class Log(Protocol):
    """One log."""

    @property
    def name(self) -> str:
        """What tells it from the other logs of the same program."""

    @property
    def note(self) -> str:
        """What a reader has to know of it; empty for nothing."""

    @property
    def silence(self) -> str:
        """Why it may have no line at all; empty for no reason."""

    def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the last lines, or all for None; with `follow`, then each new one without an end."""


class Programs(Protocol):
    """Knows the programs of kplane of one management cluster.

    Methods raise `kplane.provider.ProviderError` if a program, or the API server before it, refuses or does not answer.
    """

    @property
    def place(self) -> str:
        """Where they run, in words."""

    @property
    def namespace(self) -> str | None:
        """The namespace of their pods; None if they are no pods."""

    @property
    def required(self) -> Sequence[Program]:
        """What has to run."""

    @property
    def start(self) -> str:
        """The command that starts those that do not run, or shows why they do not."""

    @property
    def upgrade(self) -> str:
        """The command that brings them to the version of this package."""

    async def replicas(self) -> Sequence[Replica]:
        """Return all replicas, by program and name."""

    async def ask(self, replica: Replica, path: str) -> str:
        """Return what a replica answers under a path of its `--listen` address, such as `/metrics`."""

    def log(self, replica: Replica) -> Log:
        """Return the log of a replica."""

    async def component_logs(self, component: str, *, namespace: str) -> Sequence[Log]:
        """Return the logs of a component of a control plane, which has this namespace; none if it does not run."""

    async def instance_logs(self, registration: ControlPlaneRegistration, *, kind: InstanceKind) -> Sequence[Log]:
        """Return the logs of the instance of a registration; none if it does not run."""

    async def memory(self) -> Mapping[str, int]:
        """Return bytes of memory, by component of control planes; without those of which it is not known."""
