"""Describes a running management cluster to other processes, through a file in its directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from kplane.embedded.errors import EmbeddedError
from kplane.embedded.etcd import TenantsEtcd
from kplane.embedded.kubectl import Kubectl

__all__ = ["LOG_FILE", "READY_FILE", "Handle", "log_files"]

LOG_FILE = "daemon.log"
READY_FILE = "ready.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Addresses of a management cluster and paths of its credentials, without the credentials themselves."""

    directory: Path
    pid: int
    """Process that runs the cluster."""
    server: str
    """URL of the management API server."""
    admin_kubeconfig: Path
    operator_kubeconfig: Path
    """Identity of controlplane-operator."""
    mcm_kubeconfig: Path
    """Identity of mcm."""
    programs: tuple[Path, ...]
    """Directories of the Kubernetes and etcd programs."""
    kubectl_program: Path
    tenants_etcd_endpoint: str | None
    """Endpoint of the shared etcd of the virtual control planes; None if it was not started."""
    tenants_etcd_credentials: Path
    """Directory with `ca.crt`, `ca.key`, `client.crt`, `client.key`, for --shared-etcd-credentials."""
    operator_directory: Path
    """State of controlplane-operator. The processes of control planes carry its marker."""
    mcm_directory: Path
    """State of mcm. The kube-controller-manager instances carry its marker."""
    operator_url: str | None
    """Base URL of the operator's /healthz, /readyz and /metrics; None if the operators were not started."""
    mcm_url: str | None
    seconds: Mapping[str, float]
    """Duration of each part of the start, and `total`."""
    gateway_url: str | None = None
    """URL of the gateway, without a path; None if the gateway was not started."""
    gateway_ca: Path | None = None
    """CA of the gateway's serving certificate; None if the gateway was not started."""
    fake_nodes: bool = False
    """Whether control planes get the nodes that they request by `FAKE_NODES_ANNOTATION`."""

    @property
    def tenants_etcd(self) -> TenantsEtcd:
        """The shared etcd, as its user `root`. Raises `EmbeddedError` if the etcd was not started."""
        if self.tenants_etcd_endpoint is None:
            raise EmbeddedError(f"The management cluster over {self.directory} has no etcd for control planes.")
        return TenantsEtcd(endpoint=self.tenants_etcd_endpoint, credentials=self.tenants_etcd_credentials)

    @property
    def kubectl(self) -> Kubectl:
        """Kubectl as administrator of the management cluster."""
        return Kubectl(program=self.kubectl_program, kubeconfig=self.admin_kubeconfig)

    @property
    def logs(self) -> tuple[Path, ...]:
        """Log files that are not empty, of all processes, including processes of control planes and mcm."""
        return log_files(self.directory)

    def save(self) -> None:
        """Write the handle to `READY_FILE` in the directory, atomically."""
        file = self.directory / READY_FILE
        partial = file.with_suffix(".partial")
        partial.write_bytes(_ADAPTER.dump_json(self, indent=2) + b"\n")
        os.replace(partial, file)

    @classmethod
    def load(cls, directory: Path) -> Handle:
        """Read the handle of the cluster in a directory. Raises `EmbeddedError` if no cluster is ready there."""
        file = directory / READY_FILE
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except FileNotFoundError:
            raise EmbeddedError(
                f"failed to find a management cluster in {directory}: {file.name} does not exist; is the cluster ready?"
            ) from None
        except ValueError as error:
            raise EmbeddedError(f"failed to read {file}: {error}; restart the management cluster") from error


def log_files(directory: Path) -> tuple[Path, ...]:
    """Find the logs of a management cluster that are not empty, whether it runs or not."""
    candidates = [directory / LOG_FILE, *sorted(directory.rglob("log"))]
    return tuple(log for log in candidates if log.is_file() and log.stat().st_size)


_ADAPTER = TypeAdapter(Handle)
