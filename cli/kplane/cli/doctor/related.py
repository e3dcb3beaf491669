"""Checks of the problems that registrations, endpoints, classes and snapshots report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kplane.api import (
    READY,
    RUNNING,
    ControlPlaneClass,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
    find_condition,
    is_true,
)
from kplane.api.conditions import CONTESTED, DEDICATED_READY, REACHABLE
from kplane.api.reasons import Reason as OperatorReason
from kplane.cli.doctor.conditions import Told, grouped
from kplane.cli.doctor.finding import Finding, error, named
from kplane.cli.doctor.survey import Survey
from kplane.mcm.reasons import Reason

__all__ = ["check_classes", "check_endpoints", "check_registrations", "check_snapshots"]

_STARTING: Final = frozenset({Reason.STARTING, Reason.UNREADY, Reason.API_SERVER_UNREACHABLE, Reason.ENDED})
"""Reasons of mcm that are part of a start or an end."""
_RESTART: Final = "kplane down && kplane up"
"""Restarts a management cluster of an earlier `kplane up`, which adds a storage for snapshots. The data remain."""
_Conditional = ControlPlaneClass | ControlPlaneEndpoint | ControlPlaneRegistration | ControlPlaneSnapshot


async def check_endpoints(survey: Survey) -> Sequence[Finding]:
    """Find endpoints that are invalid, or do not answer.

    The operator has probed them, so this check connects to none.
    """
    kind = ControlPlaneEndpoint.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    findings = [
        *grouped(kind, _wrong(survey.endpoints, READY), now=survey.now, describe=describe),
        *grouped(kind, _unreachable(survey), now=survey.now, describe=describe),
    ]
    contested = [
        Told(endpoint.name, contest)
        for endpoint in survey.endpoints
        if (contest := find_condition(endpoint.status.conditions, CONTESTED)) is not None and contest.status == "True"
    ]
    return [*findings, *grouped(kind, contested, now=survey.now, describe=describe, harmless=True)]


def _unreachable(survey: Survey) -> list[Told]:
    """Return the valid endpoints that do not answer, though their control plane does not sleep."""
    usable = [item for item in survey.endpoints if is_true(item.status.conditions, READY)]
    return [item for item in _wrong(usable, REACHABLE) if item.condition.reason != "Hibernated"]


async def check_registrations(survey: Survey) -> Sequence[Finding]:
    """Find registrations that wait, and instances that do not run, with the reason of each."""
    kind = ControlPlaneRegistration.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    asleep = {item.name for item in survey.control_planes if item.status.hibernation is not None}
    present = [
        item
        for item in survey.registrations
        if not item.deleting and item.spec.control_plane_ref.name not in asleep and item.spec.services
    ]
    ready = [item for item in present if is_true(item.status.conditions, READY)]
    findings = [
        *grouped(kind, _wrong(present, READY), now=survey.now, describe=describe),
        *grouped(kind, _wrong(present, DEDICATED_READY), now=survey.now, describe=describe),
        # WebhookRefused is a reason of mcm and of the operator. Its command takes the name of a control plane.
        *grouped(kind, _wrong(ready, RUNNING), now=survey.now, describe=describe, passing=_STARTING, by_reason=False),
    ]
    names = {item.name for item in survey.control_planes}
    lost = [item.name for item in present if names and item.spec.control_plane_ref.name not in names]
    if lost and not any("ControlPlaneNotFound" in item.problem for item in findings):
        problem = "there is no control plane of the name in spec.controlPlaneRef"
        findings.append(error(named(kind, lost), problem, f"kplane unregister {lost[0]}"))
    return findings


async def check_classes(survey: Survey) -> Sequence[Finding]:
    """Find classes that are invalid."""
    kind = ControlPlaneClass.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    return grouped(kind, _wrong(survey.classes, READY), now=survey.now, describe=describe)


async def check_snapshots(survey: Survey) -> Sequence[Finding]:
    """Find snapshots that have failed or wait."""
    kind = ControlPlaneSnapshot.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    wrong = _wrong(survey.snapshots, READY)
    if survey.has_chart:
        return grouped(kind, wrong, now=survey.now, describe=describe, harmless=True)
    # The commands for reasons of snapshots set values of the chart. Processes of `kplane up` have no chart.
    unsaved = [item for item in wrong if item.condition.reason == OperatorReason.NO_SNAPSHOT_STORAGE]
    others = [item for item in wrong if item not in unsaved]
    return [
        *grouped(kind, unsaved, now=survey.now, describe=_RESTART, harmless=True, by_reason=False),
        *grouped(kind, others, now=survey.now, describe=describe, harmless=True, by_reason=False),
    ]


def _wrong(objects: Iterable[_Conditional], condition: str) -> list[Told]:
    pairs = ((obj.name, find_condition(obj.status.conditions, condition)) for obj in objects)
    return [Told(name, value) for name, value in pairs if value is not None and value.status != "True"]
