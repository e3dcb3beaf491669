"""The component that is a multicluster controller manager for one registration alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kplane.workloads import FILES, SCRATCH, Address, Component, File, Port, Probe, Resources, Scheduling

__all__ = ["MCM", "MCM_PORTS", "MCM_RESOURCES", "McmProgram", "mcm_component"]

MCM: Final = "mcm"
"""The program's name, where it is that of an image."""

_PORT: Final = "http"
MCM_PORTS: Final = (_PORT,)

MCM_RESOURCES: Final = Resources(cpu_request="50m", memory_request="128Mi", memory_limit="768Mi")
"""mcm itself takes 55 MiB, and its instance 512 at most, unless `--instance-memory-mib` says otherwise."""

_GRACE_SECONDS: Final = 20.0
"""An instance has 10 s to end, and then its registration is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McmProgram:
    """How each dedicated mcm is started."""

    program: str
    """`MCM`, or an absolute path."""
    directories: Sequence[Path]
    """Where kube-controller-manager and kube-scheduler are."""
    args: Sequence[str] = ()
    """More flags: of mcm, and of kube-controller-manager."""
    resources: Resources = MCM_RESOURCES


def mcm_component(
    name: str,
    *,
    registration: str,
    program: McmProgram,
    address: Address,
    service_account: str,
    files: Mapping[str, File],
    scheduling: Scheduling | None = None,
    scheduling_held: bool = False,
) -> Component:
    """Describe the mcm of one registration.

    Of `files` one may be a `kubeconfig` of the management cluster; without any, the pod's ServiceAccount gets in.
    """
    port = address.ports[_PORT]
    return Component(
        name=name,
        program=program.program,
        args=(
            f"--registration={registration}",
            "--report-status",
            *([f"--kubeconfig={FILES}/kubeconfig"] if files else []),
            f"--state-dir={SCRATCH}",
            *(f"--programs-dir={directory}" for directory in program.directories),
            f"--listen={address.listen}:{port}",
            *program.args,
        ),
        files=files,
        ports=(Port(number=port, name=_PORT),),
        scratch=True,
        single=True,
        service_account=service_account,
        readiness=Probe(port=_PORT, path="/readyz"),
        liveness_path="/healthz",
        resources=program.resources,
        scheduling=scheduling,
        scheduling_held=scheduling_held,
        metrics_port=_PORT,
        # Control planes may be anywhere.
        reaches=None,
        grace_seconds=_GRACE_SECONDS,
    )
