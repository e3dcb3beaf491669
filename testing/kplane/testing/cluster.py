"""Gives tests access to a cluster, as the value of the fixture `k8s`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kplane.embedded.errors import KubectlFailed
from kplane.testing.command import run
from kplane.testing.errors import BackendError
from kplane.testing.kind import Kind

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Credentials and capabilities of a cluster for tests, with kubectl."""

    name: str
    """Backend: kind, local or existing."""
    reason: str
    """Reason for the choice of this backend, in a single line."""
    kubeconfig: Path
    """A kubeconfig with a single context, by which tests reach only this cluster."""
    context: str
    capabilities: frozenset[str]
    """Capabilities, as in the marker `k8s_needs`."""
    kubectl_program: Path
    """Path of the program kubectl."""
    directory: Path | None = None
    """Data and logs of an embedded cluster."""
    kind: Kind | None = None

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = 60.0) -> str:
        """Run the real kubectl on this cluster and return its output.

        Raises `KubectlFailed` with the error output if kubectl fails or times out. With `check=False`, a failure raises
        no error, and the error output follows the output. A time-out still raises.
        """
        __tracebackhide__ = True  # pytest shows the line of the test instead
        cache = self.kubeconfig.parent / f".{self.kubeconfig.name}.cache"
        ended = run(
            self.kubectl_program,
            [f"--kubeconfig={self.kubeconfig}", f"--context={self.context}", f"--cache-dir={cache}", *args],
            title=" ".join(("kubectl", *args)),
            failure=KubectlFailed,
            timeout_seconds=timeout_seconds,
            stdin=stdin,
            check=check,
        )
        return ended.output if check else ended.output + ended.errors

    def load_images(self, *names: str) -> None:
        """Load container images of this machine into the nodes. Pods then need no registry for them.

        Raises `BackendError` if the backend cannot load images. Mark such a test `k8s_needs("images")`.
        """
        if self.kind is None:
            raise BackendError(
                f'failed to load images: backend {self.name} cannot load them; mark the test with k8s_needs("images")'
            )
        self.kind.load(*names)
