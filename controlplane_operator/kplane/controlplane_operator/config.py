"""What the operator was told to do, checked before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kplane.controlplane_operator.backends.etcd import DEFAULT_QUOTA_BYTES
from kplane.controlplane_operator.backends.mcm import McmProgram
from kplane.controlplane_operator.election_flags import ElectionSettings, add_election_flags, election_settings
from kplane.controlplane_operator.errors import SettingsError
from kplane.controlplane_operator.mcm_settings import add_mcm_flags, mcm_program
from kplane.controlplane_operator.pod_flags import add_pod_flags, pod_settings, storage_bytes
from kplane.provider import ClusterConfig
from kplane.workloads.pods import PodSettings

__all__ = ["EtcdAt", "EtcdService", "Settings", "parse_arguments"]


@dataclass(frozen=True, slots=True)
class EtcdAt:
    """A shared etcd of somebody else; `credentials` holds ca.crt, ca.key, client.crt and client.key."""

    endpoint: str
    credentials: Path


@dataclass(frozen=True, slots=True)
class EtcdService:
    """A shared etcd that was installed with the operator, which makes its certificates: Service and namespace."""

    service: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Flags of `controlplane-operator`, see its `--help`."""

    kubeconfig: Path | None
    """Of the management cluster; None: the ServiceAccount of the pod."""
    state_directory: Path
    program_directories: tuple[Path, ...]
    listen_host: str
    listen_port: int
    pods: PodSettings | None = None
    """How components run as pods; None: they are processes of this machine."""
    election: ElectionSettings | None = None
    """How it is made sure that one of several operators works; None: there is one."""
    shared_etcd: EtcdAt | EtcdService | None = None
    cluster_kubeconfig: Path | None = None
    namespace: str = "kplane-system"
    """Where the operator is, and ConfigMaps with add-ons."""
    mcm_namespace: str = "kplane-system"
    mcm_service_account: str = "mcm"
    dedicated_mcm: McmProgram | None = None
    """What runs for registrations of mode Dedicated; None: nothing does, and they are told."""
    workers: int = 16
    log_level: str = "INFO"

    @property
    def etcd_quota_bytes(self) -> int:
        """The size of a dedicated etcd's database at which it refuses writes: well before its volume is full."""
        if self.pods is None:
            return DEFAULT_QUOTA_BYTES
        return min(DEFAULT_QUOTA_BYTES, storage_bytes(self.pods.storage_size) * 3 // 4)

    def management_config(self) -> ClusterConfig:
        """Read how the management cluster is reached. Raises KubeconfigError."""
        return ClusterConfig.load(self.kubeconfig) if self.kubeconfig is not None else ClusterConfig.in_cluster()


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Turn command line arguments into settings.

    Raises SettingsError with a sentence that names the flag; exits (as argparse does) for `--help` and unknown flags.
    """
    given = _parser().parse_args(arguments)
    host, port = _address(given.listen)
    namespace, service_account = _service_account(given.mcm_service_account)
    if given.workers < 1:
        raise SettingsError(f"--workers {given.workers}: at least 1 is needed")
    programs = tuple(_directory("--programs-dir", path) for path in given.programs_dir)
    return Settings(
        kubeconfig=_file("--kubeconfig", given.kubeconfig) if given.kubeconfig else None,
        state_directory=given.state_dir.absolute(),
        program_directories=programs,
        listen_host=host,
        listen_port=port,
        pods=pod_settings(given),
        election=election_settings(given),
        shared_etcd=_shared_etcd(given),
        cluster_kubeconfig=_file("--cluster-kubeconfig", given.cluster_kubeconfig)
        if given.cluster_kubeconfig
        else None,
        namespace=given.namespace,
        mcm_namespace=namespace,
        mcm_service_account=service_account,
        dedicated_mcm=mcm_program(given, directories=programs),
        workers=given.workers,
        log_level=given.log_level,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="controlplane-operator",
        description="Makes ControlPlane objects real and resolves ControlPlaneRegistrations.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="of the management cluster (default: the ServiceAccount of the pod)",
    )
    add("--runtime", choices=["process", "pods"], default="process", help="what API servers and etcds run as")
    add(
        "--state-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="for what running components keep, and for credentials of the shared etcd",
    )
    add(
        "--programs-dir",
        type=Path,
        required=True,
        action="append",
        metavar="DIR",
        help="where kube-apiserver and etcd are, for --runtime=process; may be repeated",
    )
    add(
        "--shared-etcd-endpoint",
        metavar="URL",
        help="etcd of the virtual control planes, such as https://10.0.0.5:2379",
    )
    add(
        "--shared-etcd-credentials",
        type=Path,
        metavar="DIR",
        help="with ca.crt and ca.key, which sign tenants' client certificates, and client.crt and client.key of root",
    )
    add(
        "--shared-etcd-service",
        metavar="NAME",
        help="Service of an etcd that was installed with this operator, which then makes its certificates",
    )
    add(
        "--namespace",
        default="kplane-system",
        metavar="NAME",
        help="of this operator and its Lease, of add-ons, of --shared-etcd-service and of --image-pull-secret",
    )
    add("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="for /healthz, /readyz and /metrics")
    add(
        "--cluster-kubeconfig",
        type=Path,
        metavar="FILE",
        help="bootstrap credentials for external endpoints that name none themselves",
    )
    add(
        "--mcm-service-account",
        default="kplane-system/mcm",
        metavar="NAMESPACE/NAME",
        help="who may read the Secrets that registrations resolve to",
    )
    add("--workers", type=int, default=16, metavar="N", help="objects of a kind worked on at once")
    add("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"], default="INFO")
    add_election_flags(parser)
    add_pod_flags(parser)
    add_mcm_flags(parser)
    return parser


def _address(value: str) -> tuple[str, int]:
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"--listen {value}: this is not HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def _service_account(value: str) -> tuple[str, str]:
    namespace, separator, name = value.partition("/")
    if not separator or not namespace or not name or "/" in name:
        raise SettingsError(f"--mcm-service-account {value}: this is not NAMESPACE/NAME, such as kplane-system/mcm")
    return namespace, name


def _file(flag: str, path: Path) -> Path:
    if not path.is_file():
        raise SettingsError(f"{flag} {path}: there is no such file")
    return path.absolute()


def _directory(flag: str, path: Path) -> Path:
    if not path.is_dir():
        raise SettingsError(f"{flag} {path}: there is no such directory")
    return path.absolute()


def _shared_etcd(given: argparse.Namespace) -> EtcdAt | EtcdService | None:
    endpoint, credentials = given.shared_etcd_endpoint, given.shared_etcd_credentials
    if given.shared_etcd_service is not None:
        if endpoint is not None or credentials is not None:
            raise SettingsError(
                "--shared-etcd-service stands alone: --shared-etcd-endpoint and --shared-etcd-credentials are for"
                " another etcd"
            )
        return EtcdService(given.shared_etcd_service, given.namespace)
    if endpoint is None and credentials is None:
        return None
    if endpoint is None or credentials is None:
        raise SettingsError(
            "--shared-etcd-endpoint and --shared-etcd-credentials go together; only one of them is given"
        )
    parts = urlsplit(endpoint)
    if parts.scheme != "https" or not parts.hostname:
        raise SettingsError(f"--shared-etcd-endpoint {endpoint}: an https URL is needed, such as https://10.0.0.5:2379")
    directory = _directory("--shared-etcd-credentials", credentials)
    for name in ("ca.crt", "ca.key", "client.crt", "client.key"):
        if not (directory / name).is_file():
            raise SettingsError(f"--shared-etcd-credentials {credentials}: {name} is missing there")
    return EtcdAt(endpoint, directory)
