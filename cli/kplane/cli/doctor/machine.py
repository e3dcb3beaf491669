"""Checks of this machine: its clock, its limits, and the certificate of its user."""

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
"""Clock difference that is an error, because clocks decide on the validity of tokens and Leases."""
_FEW_FILES: Final = 4096
"""Minimum hard limit of open files. Programs raise their limit to it, and many control planes need more files."""
_SOON: Final = timedelta(days=7)


async def check_clock(survey: Survey) -> Sequence[Finding]:
    """Compare the clock of this machine with the clock of the API server."""
    difference = abs(survey.ahead)
    if difference < _NOTICED:
        return []
    direction = "behind" if survey.ahead > timedelta() else "ahead of"
    problem = f"its clock is {difference.total_seconds():.0f} s {direction} that of the API server"
    finding_of = error if difference >= _HARMFUL else warning
    return [finding_of("this machine", problem, "timedatectl set-ntp true")]


async def check_open_files(survey: Survey) -> Sequence[Finding]:
    """Check the number of files that programs of this machine may open."""
    del survey
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEW_FILES:
        return []
    problem = f"a process may have {hard} files open, and `kplane up` and `kplane demo` need {_FEW_FILES}"
    command = f"echo '* hard nofile {_FEW_FILES}' | sudo tee /etc/security/limits.d/kplane.conf"
    return [warning("this machine", problem, command)]


async def check_inotify(survey: Survey) -> Sequence[Finding]:
    """Check whether a gateway can start again on this machine, and whether another control plane can be awake."""
    if not isinstance(survey.programs, Processes):
        return []  # pods have the limits of their nodes
    for needed, finding_of, harm in (
        (ENVOY_INOTIFY_INSTANCES, error, "a gateway that starts again ends at once"),
        (ENVOY_INOTIFY_INSTANCES + AWAKE_INOTIFY_INSTANCES, warning, "one more awake control plane leaves none"),
    ):
        if shortage := await asyncio.to_thread(inotify_shortage, needed):
            problem, _, command = shortage.partition("; raise the limit: ")
            return [finding_of("this machine", f"{problem}: {harm}", command)]
    return []


async def check_own_certificate(survey: Survey) -> Sequence[Finding]:
    """Check the expiry of the client certificate in the kubeconfig."""
    content = survey.client.config.client_certificate
    if content is None:
        return []
    from cryptography.x509 import load_pem_x509_certificate

    ends = load_pem_x509_certificate(content).not_valid_after_utc
    if survey.now + _SOON < ends:
        return []
    problem = f"the client certificate in it ends at {ends:%Y-%m-%d %H:%M} UTC"
    command = "kplane up" if isinstance(survey.programs, Processes) else "kubectl config view"
    finding_of = error if ends <= survey.now else warning
    return [finding_of("your kubeconfig", problem, command)]
