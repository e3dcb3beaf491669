"""Starts an API server for each set of manifests in a process of pytest, when a test first needs the set."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kplane.binaries.programs import resolve
from kplane.testing.backends import current_context, safe_path
from kplane.testing.choice import Choice
from kplane.testing.clean.client import CleanServer
from kplane.testing.cluster import Cluster
from kplane.testing.errors import BackendError

__all__ = ["CleanServers"]

_NEEDED = ("grpc", "google.protobuf")
_ESTABLISHED_SECONDS = 60


class CleanServers:
    """Starts API servers, and resets them for tests. Methods raise `EmbeddedError` and `BinariesError`."""

    def __init__(self, choice: Choice) -> None:
        """Take the choice of this run, which is `local`. Starts no program yet."""
        self._choice = choice
        self._servers: dict[tuple[Path, ...], tuple[CleanServer, Cluster]] = {}
        self.latest: Cluster | None = None
        """API server of the last test."""

    def clean(self, manifests: tuple[Path, ...]) -> Cluster:
        """Return an API server with these manifests only."""
        if manifests in self._servers:
            server, cluster = self._servers[manifests]
            self.latest = cluster
            server.clean()
        else:
            self.latest = self._start(manifests)
        return self.latest

    def stop(self) -> None:
        """End all API servers."""
        while self._servers:
            _, (server, _) = self._servers.popitem()
            server.stop()

    def _start(self, manifests: tuple[Path, ...]) -> Cluster:
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise BackendError(
                f"failed to start clean_api_server: it needs {' and '.join(missing)}; install kplane[testing]"
            )
        binaries = resolve()
        with safe_path():
            server = CleanServer(programs=binaries.directories)
        try:
            kubectl = binaries.path("kubectl")
            cluster = Cluster(
                name=self._choice.backend,
                reason=self._choice.reason,
                kubeconfig=server.kubeconfig,
                context=current_context(kubectl, kubeconfig=server.kubeconfig),
                capabilities=frozenset({"api", "reset"}),
                kubectl_program=kubectl,
                directory=server.directory,
            )
            for manifest in manifests:
                cluster.kubectl("apply", "--server-side", "-f", str(manifest))
            if manifests and cluster.kubectl("get", "crd", "-o", "name"):
                wait = ("--for=condition=Established", "crd", "--all", f"--timeout={_ESTABLISHED_SECONDS}s")
                cluster.kubectl("wait", *wait, timeout_seconds=_ESTABLISHED_SECONDS + 10)
            server.prepare()
        except BaseException:
            server.stop()
            raise
        self._servers[manifests] = server, cluster
        return cluster
