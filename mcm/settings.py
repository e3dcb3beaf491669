"""What mcm is told on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the process."""

    kubeconfig: Path | None
    """Of the management cluster; None: the ServiceAccount of the Pod."""
    state_directory: Path
    """Where instances have their files and logs; only one mcm at a time uses it."""
    programs: tuple[Path, ...]
    """Where kube-controller-manager is."""
    host: str
    port: int
    """Where /healthz, /readyz and /metrics are served."""
    log_level: str

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Self:
        """Read command-line arguments. Ends the process with a message where they are wrong, as argparse does."""
        parser = argparse.ArgumentParser(
            prog="mcm",
            description="Runs the upstream kube-controller-manager for every ControlPlaneRegistration that is ready.",
        )
        parser.add_argument("--kubeconfig", type=Path, help="of the management cluster (default: in-cluster)")
        parser.add_argument("--state-dir", type=Path, required=True, help="private directory for instances")
        parser.add_argument(
            "--programs-dir",
            type=Path,
            action="append",
            required=True,
            help="directory with kube-controller-manager; may be given more than once",
        )
        parser.add_argument(
            "--listen", default="127.0.0.1:8081", metavar="HOST:PORT", help="for /healthz, /readyz and /metrics"
        )
        parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
        given = parser.parse_args(arguments)
        host, _, port = given.listen.rpartition(":")
        if not host or not port.isdigit():
            parser.error(f"--listen is {given.listen!r}, which is not HOST:PORT")
        for directory in given.programs_dir:
            if not directory.is_dir():
                parser.error(f"--programs-dir {directory} is not a directory")
        return cls(
            kubeconfig=given.kubeconfig,
            state_directory=given.state_dir,
            programs=tuple(given.programs_dir),
            host=host,
            port=int(port),
            log_level=given.log_level,
        )
