"""What registrations, endpoints, classes and snapshots say that is wrong with them."""

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
"""Gives a management cluster that an earlier `kplane up` started a storage for snapshots. Its data stay."""
_Conditional = ControlPlaneClass | ControlPlaneEndpoint | ControlPlaneRegistration | ControlPlaneSnapshot


async def check_endpoints(survey: Survey) -> Sequence[Finding]:
    """Find endpoints that cannot be used, or do not answer. The operator asked them; nothing is asked again."""
    kind = ControlPlaneEndpoint.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    found = [
        *grouped(kind, _wrong(survey.endpoints, READY), now=survey.now, describe=describe),
        *grouped(kind, _unreachable(survey), now=survey.now, describe=describe),
    ]
    contested = [
        Told(each.name, told)
        for each in survey.endpoints
        if (told := find_condition(each.status.conditions, CONTESTED)) is not None and told.status == "True"
    ]
    return [*found, *grouped(kind, contested, now=survey.now, describe=describe, harmless=True)]


def _unreachable(survey: Survey) -> list[Told]:
    """Return the endpoints that are well written and do not answer, though their control plane does not sleep."""
    usable = [each for each in survey.endpoints if is_true(each.status.conditions, READY)]
    return [each for each in _wrong(usable, REACHABLE) if each.condition.reason != "Hibernated"]


async def check_registrations(survey: Survey) -> Sequence[Finding]:
    """Find registrations that wait, and instances that do not run, with the reason of each."""
    kind = ControlPlaneRegistration.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    asleep = {each.name for each in survey.control_planes if each.status.hibernation is not None}
    present = [
        each
        for each in survey.registrations
        if not each.deleting and each.spec.control_plane_ref.name not in asleep and each.spec.services
    ]
    ready = [each for each in present if is_true(each.status.conditions, READY)]
    found = [
        *grouped(kind, _wrong(present, READY), now=survey.now, describe=describe),
        *grouped(kind, _wrong(present, DEDICATED_READY), now=survey.now, describe=describe),
        # WebhookRefused is a reason of mcm and of the operator. Its command takes the name of a control plane.
        *grouped(kind, _wrong(ready, RUNNING), now=survey.now, describe=describe, passing=_STARTING, by_reason=False),
    ]
    names = {each.name for each in survey.control_planes}
    lost = [each.name for each in present if names and each.spec.control_plane_ref.name not in names]
    if lost and not any("ControlPlaneNotFound" in each.problem for each in found):
        problem = "there is no control plane of the name in spec.controlPlaneRef"
        found.append(error(named(kind, lost), problem, f"kplane unregister {lost[0]}"))
    return found


async def check_classes(survey: Survey) -> Sequence[Finding]:
    """Find classes that cannot be used."""
    kind = ControlPlaneClass.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    return grouped(kind, _wrong(survey.classes, READY), now=survey.now, describe=describe)


async def check_snapshots(survey: Survey) -> Sequence[Finding]:
    """Find snapshots that are not made."""
    kind = ControlPlaneSnapshot.resource.kind
    describe = f"kubectl describe {kind.lower()} {{name}}"
    wrong = _wrong(survey.snapshots, READY)
    if survey.has_chart:
        return grouped(kind, wrong, now=survey.now, describe=describe, harmless=True)
    # The commands of reasons of snapshots set values of the chart, which processes of `kplane up` do not have.
    unsaved = [each for each in wrong if each.condition.reason == OperatorReason.NO_SNAPSHOT_STORAGE]
    others = [each for each in wrong if each not in unsaved]
    return [
        *grouped(kind, unsaved, now=survey.now, describe=_RESTART, harmless=True, by_reason=False),
        *grouped(kind, others, now=survey.now, describe=describe, harmless=True, by_reason=False),
    ]


def _wrong(objects: Iterable[_Conditional], condition: str) -> list[Told]:
    found = ((each.name, find_condition(each.status.conditions, condition)) for each in objects)
    return [Told(name, told) for name, told in found if told is not None and told.status != "True"]
