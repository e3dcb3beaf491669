"""Execution of all checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kplane.cli.advice import addressed
from kplane.cli.doctor.control_planes import check_conditions, check_credentials, check_not_ready
from kplane.cli.doctor.definitions import check_definitions, check_kubernetes
from kplane.cli.doctor.finding import Finding, Severity, warning
from kplane.cli.doctor.leftovers import check_leftovers
from kplane.cli.doctor.lost_data import check_lost_data
from kplane.cli.doctor.machine import check_clock, check_inotify, check_open_files, check_own_certificate
from kplane.cli.doctor.programs import (
    check_controllers_credentials,
    check_gateways,
    check_leader,
    check_programs,
)
from kplane.cli.doctor.related import check_classes, check_endpoints, check_registrations, check_snapshots
from kplane.cli.doctor.rights import check_rights, check_unread
from kplane.cli.doctor.survey import Survey
from kplane.provider import ProviderError

__all__ = ["CHECKS", "Examination", "examine"]

Check = Callable[[Survey], Awaitable[Sequence[Finding]]]

CHECKS: Final[Mapping[str, Check]] = {
    "kubernetes": check_kubernetes,
    "definitions": check_definitions,
    "programs": check_programs,
    "leader": check_leader,
    "gateways": check_gateways,
    "rights": check_rights,
    "unread": check_unread,
    "not-ready": check_not_ready,
    "lost-data": check_lost_data,
    "conditions": check_conditions,
    "credentials": check_credentials,
    "controllers-credentials": check_controllers_credentials,
    "endpoints": check_endpoints,
    "registrations": check_registrations,
    "classes": check_classes,
    "snapshots": check_snapshots,
    "leftovers": check_leftovers,
    "clock": check_clock,
    "own-certificate": check_own_certificate,
    "open-files": check_open_files,
    "inotify": check_inotify,
}
"""Checks by name. A check opens no connection to a control plane."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of all checks."""

    findings: Sequence[tuple[str, Finding]]
    """Findings with the name of their check, errors first."""

    @property
    def failed(self) -> bool:
        """Whether there is a finding of severity error."""
        return any(finding.severity is Severity.ERROR for _, finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the names of the checks and all findings."""
        findings = [{"check": name, **finding.to_json()} for name, finding in self.findings]
        return {"checks": list(CHECKS), "findings": findings}


async def examine(survey: Survey) -> Examination:
    """Run all checks. A check that fails to run is a warning itself."""
    results: list[tuple[str, Finding]] = []
    for name, check in CHECKS.items():
        try:
            results += [(name, finding) for finding in await check(survey)]
        except (ProviderError, OSError, ValueError, LookupError) as failure:
            # The message of these two types is often only a key or a value.
            kind = f"{type(failure).__name__}: " if isinstance(failure, (ValueError, LookupError)) else ""
            results.append((name, warning(f"check {name}", f"failed to check: {kind}{failure}", "kplane doctor")))
    findings = [
        (name, replace(finding, command=addressed(finding.command, cluster=survey.cluster)))
        for name, finding in results
    ]
    return Examination(sorted(findings, key=lambda each: each[1].severity is not Severity.ERROR))
