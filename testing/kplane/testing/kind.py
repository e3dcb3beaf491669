"""A cluster of kind: Kubernetes nodes as containers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kplane.testing.command import run
from kplane.testing.errors import KindFailed, KindTimedOut

__all__ = ["Kind"]

_QUICK_SECONDS = 30.0
_SLOW_SECONDS = 900.0
_CREATION_SECONDS = 900.0
_NODES_READY = "180s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A cluster of kind, there or not.

    Every method raises `KindFailed` with kind's own words, and `KindTimedOut`, which is one.
    """

    program: Path
    cluster: str

    @property
    def context(self) -> str:
        """How kind names the context of its kubeconfigs."""
        return f"kind-{self.cluster}"

    def exists(self) -> bool:
        """Whether the cluster is there. Asks the container engine."""
        return self.cluster in self._run("get", "clusters").split()

    def create(self, *, image: str | None, config: str | None, kubeconfig: Path) -> None:
        """Create the cluster and wait for its nodes. The kubeconfig goes into a file of its own, not the user's.

        kind itself takes away what it could not finish, but not where it takes too long.
        """
        args = [f"--name={self.cluster}", f"--kubeconfig={kubeconfig}", f"--wait={_NODES_READY}"]
        args += [f"--image={image}"] if image else []
        args += [f"--config={config}"] if config else []
        self._run("create", "cluster", *args, timeout_seconds=_CREATION_SECONDS)

    def kubeconfig(self) -> str:
        """The administrator's kubeconfig."""
        return self._run("get", "kubeconfig", f"--name={self.cluster}")

    def load(self, *images: str) -> None:
        """Bring images from the container engine to all nodes."""
        self._run("load", "docker-image", f"--name={self.cluster}", *images, timeout_seconds=_SLOW_SECONDS)

    def delete(self, *, kubeconfig: Path) -> None:
        """Delete the cluster, and its context from this kubeconfig. Does nothing where there is none."""
        self._run(
            "delete", "cluster", f"--name={self.cluster}", f"--kubeconfig={kubeconfig}", timeout_seconds=_SLOW_SECONDS
        )

    def _run(self, *args: str, timeout_seconds: float = _QUICK_SECONDS) -> str:
        title = " ".join(("kind", *args))
        return run(
            self.program,
            args,
            title=title,
            failure=KindFailed,
            timed_out=KindTimedOut,
            timeout_seconds=timeout_seconds,
        ).output
