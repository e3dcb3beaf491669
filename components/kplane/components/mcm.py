"""Description of a dedicated multicluster controller manager, for a single registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kplane.workloads import FILES, SCRATCH, Address, Component, File, Port, Probe, Resources, Scheduling

__all__ = ["MCM", "MCM_PORTS", "MCM_RESOURCES", "McmProgram", "mcm_component"]

MCM: Final = "mcm"
"""Name of the program, if the program is in an image."""

_PORT: Final = "http"
MCM_PORTS: Final = (_PORT,)

MCM_RESOURCES: Final = Resources(cpu_request="50m", memory_request="128Mi", memory_limit="768Mi")
"""mcm takes 55 MiB, and its instance at most 512, unless `--instance-memory-mib` sets another limit."""

_GRACE_SECONDS: Final = 20.0
"""Grace period: an instance has 10 s to stop, and mcm then updates the status of its registration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McmProgram:
    """Start command of each dedicated mcm."""

    program: str
    """`MCM`, or an absolute path."""
    directories: Sequence[Path]
    """Directories with kube-controller-manager and kube-scheduler."""
    args: Sequence[str] = ()
    """Further flags: of mcm, and of kube-controller-manager."""
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
    """Describe the mcm of a registration.

    `files` may have a `kubeconfig` of the management cluster. Without files, mcm uses the pod's ServiceAccount.
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
        # mcm may connect to any address: the control planes of its registration may be anywhere.
        reaches=None,
        grace_seconds=_GRACE_SECONDS,
    )
