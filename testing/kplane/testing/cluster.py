"""The cluster that tests use: what the fixture `k8s` gives."""

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
    """A cluster for tests, whatever runs it."""

    name: str
    """Of the backend: kind, local or existing."""
    reason: str
    """Why it is this backend, for people."""
    kubeconfig: Path
    """Holds one context: no other cluster can be reached by it."""
    context: str
    capabilities: frozenset[str]
    """What it can do: the words that the marker `k8s_needs` takes."""
    kubectl_program: Path
    """What `kubectl` runs, for whoever runs it otherwise."""
    directory: Path | None = None
    """Of an embedded cluster: data and logs."""
    kind: Kind | None = None

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = 60.0) -> str:
        """Run the real kubectl on this cluster and return what it printed.

        Raises `KubectlFailed` with kubectl's own words where it ends with an error. With `check=False` it returns them
        instead, after what it printed otherwise; one that takes too long is an error all the same.
        """
        __tracebackhide__ = True  # pytest shows where a test called it
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
        """Bring container images of this machine to the nodes, where pods find them without a registry.

        Raises `BackendError` where the backend cannot: a test that does this is marked `k8s_needs("images")`.
        """
        if self.kind is None:
            raise BackendError(f'The backend {self.name} loads no images; mark the test with k8s_needs("images").')
        self.kind.load(*names)
