"""What is wrong on this machine: its clock, its limits, and the certificate of its user."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from kplane.cli.doctor.finding import Finding, error, warning
from kplane.cli.doctor.survey import Survey
from kplane.cli.programs.processes import Processes
from kplane.embedded.components import AWAKE_INOTIFY_INSTANCES, ENVOY_INOTIFY_INSTANCES
from kplane.workloads import inotify_shortage

__all__ = ["check_clock", "check_inotify", "check_open_files", "check_own_certificate"]

_NOTICED: Final = timedelta(seconds=3)
_HARMFUL: Final = timedelta(seconds=30)
"""Tokens and Leases are judged by clocks."""
_FEW_FILES: Final = 4096
"""Programs raise their limit to the hard one; a gateway or operator of hundreds of control planes needs more."""
_SOON: Final = timedelta(days=7)


async def check_clock(survey: Survey) -> Sequence[Finding]:
    """Compare the clock of this machine with that of the API server."""
    difference = abs(survey.ahead)
    if difference < _NOTICED:
        return []
    direction = "behind" if survey.ahead > timedelta() else "ahead of"
    problem = f"its clock is {difference.total_seconds():.0f} s {direction} that of the API server"
    told = error if difference >= _HARMFUL else warning
    return [told("this machine", problem, "timedatectl set-ntp true")]


async def check_open_files(survey: Survey) -> Sequence[Finding]:
    """Look at the number of files that programs of this machine may have open."""
    del survey
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEW_FILES:
        return []
    problem = f"a process may have {hard} files open, and `kplane up` and `kplane demo` need {_FEW_FILES}"
    command = f"echo '* hard nofile {_FEW_FILES}' | sudo tee /etc/security/limits.d/kplane.conf"
    return [warning("this machine", problem, command)]


async def check_inotify(survey: Survey) -> Sequence[Finding]:
    """Look whether a gateway can start again here, and whether one more control plane can be awake."""
    if not isinstance(survey.programs, Processes):
        return []  # pods have the limits of their nodes
    for needed, told, harm in (
        (ENVOY_INOTIFY_INSTANCES, error, "a gateway that starts again ends at once"),
        (ENVOY_INOTIFY_INSTANCES + AWAKE_INOTIFY_INSTANCES, warning, "one more awake control plane leaves none"),
    ):
        if shortage := await asyncio.to_thread(inotify_shortage, needed):
            problem, _, command = shortage.partition("; raise the limit: ")
            return [told("this machine", f"{problem}: {harm}", command)]
    return []


async def check_own_certificate(survey: Survey) -> Sequence[Finding]:
    """Look when the client certificate of the kubeconfig ends."""
    content = survey.client.config.client_certificate
    if content is None:
        return []
    from cryptography.x509 import load_pem_x509_certificate

    ends = load_pem_x509_certificate(content).not_valid_after_utc
    if survey.now + _SOON < ends:
        return []
    problem = f"the client certificate in it ends at {ends:%Y-%m-%d %H:%M} UTC"
    command = "kplane up" if isinstance(survey.programs, Processes) else "kubectl config view"
    told = error if ends <= survey.now else warning
    return [told("your kubeconfig", problem, command)]
