"""Creates and deletes a kind cluster, whose nodes are containers."""

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
    """Manages a kind cluster, which need not exist.

    Each method raises `KindFailed` with kind's output, or its subclass `KindTimedOut`.
    """

    program: Path
    cluster: str

    @property
    def context(self) -> str:
        """Name of the context in kind's kubeconfigs."""
        return f"kind-{self.cluster}"

    def exists(self) -> bool:
        """Ask the container engine whether the cluster exists."""
        return self.cluster in self._run("get", "clusters").split()

    def create(self, *, image: str | None, config: str | None, kubeconfig: Path) -> None:
        """Create the cluster and wait for its nodes. Leaves the user's kubeconfig unchanged.

        If the creation fails, kind removes the partial cluster. After a time-out it stays.
        """
        args = [f"--name={self.cluster}", f"--kubeconfig={kubeconfig}", f"--wait={_NODES_READY}"]
        args += [f"--image={image}"] if image else []
        args += [f"--config={config}"] if config else []
        self._run("create", "cluster", *args, timeout_seconds=_CREATION_SECONDS)

    def kubeconfig(self) -> str:
        """Return the administrator's kubeconfig."""
        return self._run("get", "kubeconfig", f"--name={self.cluster}")

    def load(self, *images: str) -> None:
        """Load images from the container engine into all nodes."""
        self._run("load", "docker-image", f"--name={self.cluster}", *images, timeout_seconds=_SLOW_SECONDS)

    def delete(self, *, kubeconfig: Path) -> None:
        """Delete the cluster, and its context from this kubeconfig, if they exist."""
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
