"""Clusters of kind: Kubernetes nodes as containers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embedded.testing.command import run
from embedded.testing.errors import KindFailed

__all__ = ["Kind"]

_QUICK_SECONDS = 30.0
_SLOW_SECONDS = 900.0
_NODES_READY = "180s"


@dataclass(frozen=True, slots=True)
class Kind:
    """kind, the program. Every method raises `KindFailed` with kind's own words."""

    program: Path

    def clusters(self) -> frozenset[str]:
        """Names of the clusters that there are: this asks the container engine."""
        return frozenset(self._run("get", "clusters").split())

    def create(self, name: str, *, image: str | None, config: str | None, kubeconfig: Path) -> None:
        """Create a cluster, and wait for its node. The kubeconfig goes into a file of its own, not into the user's."""
        args = [f"--name={name}", f"--kubeconfig={kubeconfig}", f"--wait={_NODES_READY}"]
        args += [f"--image={image}"] if image else []
        args += [f"--config={config}"] if config else []
        self._run("create", "cluster", *args, timeout_seconds=_SLOW_SECONDS)

    def kubeconfig(self, name: str) -> str:
        """Administrator's kubeconfig of a cluster; its context is `kind-<name>`."""
        return self._run("get", "kubeconfig", f"--name={name}")

    def load(self, name: str, *images: str) -> None:
        """Bring images from the container engine to all nodes."""
        self._run("load", "docker-image", f"--name={name}", *images, timeout_seconds=_SLOW_SECONDS)

    def delete(self, name: str, *, kubeconfig: Path) -> None:
        """Delete a cluster, and its context from this kubeconfig. Does nothing where there is none."""
        self._run("delete", "cluster", f"--name={name}", f"--kubeconfig={kubeconfig}", timeout_seconds=_SLOW_SECONDS)

    def _run(self, *args: str, timeout_seconds: float = _QUICK_SECONDS) -> str:
        title = " ".join(("kind", *args))
        return run(self.program, args, title=title, failure=KindFailed, timeout_seconds=timeout_seconds).output
