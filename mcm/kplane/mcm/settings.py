"""What mcm is told on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kplane.mcm.describe.flags import Flags
from kplane.mcm.errors import ConfigurationError
from kplane.mcm.instance.logs import LogForm
from kplane.mcm.placement.sharding import Sharding, add_sharding_flags
from kplane.mcm.serving.metrics import InstanceMetrics
from kplane.mcm.serving.server import Listen
from kplane.mcm.source.sources import Source, add_source_flags

__all__ = ["Settings"]

_LEAST_MIB = 64
"""No instance runs with less: each would be ended again and again."""
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that mcm can be told."""

    kubeconfig: Path | None
    """Of the management cluster; None: the ServiceAccount of the pod."""
    state_dir: Path
    """Belongs to one mcm: credentials and logs of the instances."""
    programs: tuple[Path, ...]
    """Directories with kube-controller-manager, of several versions where there are several."""
    listen: Listen
    log_level: str
    instance_memory_mib: int
    """An instance that takes more is ended and started again; 0: each takes what it needs."""
    instance_metrics: InstanceMetrics
    instance_logs: LogForm
    report_status: bool
    """Whether registrations are told of their instances, which the operator's removals and moves wait for."""
    flags: Flags
    """Of kube-controller-manager, for every instance."""
    scheduler_flags: Flags
    """Of kube-scheduler, for every instance of it."""
    source: Source
    sharding: Sharding | None
    """How the fleet is shared with other mcm; None: this one is alone."""

    @property
    def has_to_announce(self) -> bool:
        """Whether nothing starts of which a registration cannot be told first, where it is told of instances.

        Whoever has Leases runs nothing anyway where the management cluster takes no writes.
        """
        return self.source.registration is not None or self.sharding is not None

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Settings:
        """Read the command line (default: this process's). Ends the process with status 2 where it is wrong."""
        parser = argparse.ArgumentParser(
            prog="mcm",
            description="Runs kube-controller-manager for every control plane that is registered.",
            epilog="All other flags are those of kube-controller-manager, such as --controllers, --feature-gates or"
            " --concurrent-gc-syncs, and reach every instance; those that mcm sets itself are refused.",
            allow_abbrev=False,
        )
        _add_places(parser)
        _add_instances(parser)
        parser.add_argument("--log-level", choices=_LEVELS, default="info", help="default: info")
        add_source_flags(parser)
        add_sharding_flags(parser)
        _add_observation(parser)
        given, others = parser.parse_known_args(arguments)
        try:
            flags, source, sharding = Flags.parse(others), Source.parse(given), Sharding.parse(given)
            scheduler_flags = Flags.parse_scheduler(given.scheduler_flags)
        except ConfigurationError as error:
            parser.error(str(error))
        if source.registration is not None and not given.report_status:
            parser.error(
                "--registration needs --report-status: by what the registration is told of instances, this mcm and that"
                " of many registrations take turns"
            )
        return cls(
            kubeconfig=given.kubeconfig,
            state_dir=given.state_dir,
            programs=tuple(given.programs),
            listen=given.listen,
            log_level=given.log_level,
            instance_memory_mib=given.instance_memory_mib,
            instance_metrics=InstanceMetrics(given.instance_metrics),
            instance_logs=LogForm(given.instance_logs),
            report_status=given.report_status,
            flags=flags,
            scheduler_flags=scheduler_flags,
            source=source,
            sharding=sharding,
        )


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig of the management cluster (default: the ServiceAccount of the pod)",
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory of this mcm alone, for credentials and logs of the instances",
    )
    parser.add_argument(
        "--programs-dir",
        type=_directory,
        required=True,
        action="append",
        dest="programs",
        metavar="DIR",
        help="directory with kube-controller-manager; may be given several times, for several versions of it",
    )
    parser.add_argument(
        "--listen",
        type=_listen,
        default=Listen("127.0.0.1", 8081),
        metavar="HOST:PORT",
        help="address of /healthz, /readyz, /clusters and /metrics (default: 127.0.0.1:8081)",
    )


def _add_instances(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--instance-memory-mib",
        type=_mebibytes,
        default=512,
        metavar="MIB",
        help="memory that an instance may take: one that takes more is ended and started again (default: 512;"
        " 0: no limit)",
    )
    parser.add_argument(
        "--scheduler-flag",
        action="append",
        default=[],
        dest="scheduler_flags",
        metavar="FLAG",
        help="flag of kube-scheduler, for every instance of it, such as --scheduler-flag=--kube-api-qps=100; may be"
        " given several times",
    )


def _add_observation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--instance-metrics",
        choices=tuple(InstanceMetrics),
        default=InstanceMetrics.FIXED,
        help="what /metrics has of each instance: nothing, or a fixed set of series (default: fixed)",
    )
    parser.add_argument(
        "--instance-logs",
        choices=tuple(LogForm),
        default=LogForm.FILES,
        help="where the logs of instances are: in --state-dir only, or on the standard output too, each line after the"
        " cluster's name, or as JSON with it (default: files)",
    )
    parser.add_argument(
        "--report-status",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write the condition Running and status.instance of registrations; controlplane-operator waits for what"
        " they say before it removes or moves a control plane (default: no)",
    )


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no directory")
    return path.absolute()


def _mebibytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or 0 < int(text) < _LEAST_MIB:
        raise argparse.ArgumentTypeError(f"{text!r} has to be a number of MiB, 0 or at least {_LEAST_MIB}")
    return int(text)


def _listen(text: str) -> Listen:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} has to be HOST:PORT, such as 127.0.0.1:8081 or [::]:8081")
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))
