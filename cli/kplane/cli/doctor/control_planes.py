"""Checks of the problems that control planes report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from kplane.api import READY, ControlPlane, find_condition, is_true
from kplane.api.conditions import (
    ADDONS_READY,
    CLASS_FOUND,
    DELETING,
    HIBERNATED,
    LEASES_UNGUARDED,
    MIGRATING,
    PAUSED,
    STORAGE_SUFFICIENT,
    SUPPORTED,
    SYNCED,
    UP_TO_DATE,
)
from kplane.api.reasons import Reason
from kplane.cli.doctor.conditions import Told, grouped
from kplane.cli.doctor.finding import Finding, error, named, warning
from kplane.cli.doctor.survey import Survey

__all__ = ["check_conditions", "check_credentials", "check_not_ready"]

_KIND: Final = ControlPlane.resource.kind
_DESCRIBE: Final = "kplane describe {name}"
_NEW: Final = timedelta(minutes=1)
_LONG: Final = timedelta(minutes=10)
"""Time after which a deletion is a finding."""
_SOON: Final = timedelta(minutes=5)
_OTHERS: Final = (UP_TO_DATE, SYNCED, STORAGE_SUFFICIENT, LEASES_UNGUARDED, ADDONS_READY, CLASS_FOUND, SUPPORTED)
"""Conditions that do not keep a control plane from being Ready."""
_MOVES: Final = frozenset({"MigrationBlocked"})
"""Reasons of a False condition Migrating that block a requested move."""


async def check_not_ready(survey: Survey) -> Sequence[Finding]:
    """Find control planes that are not Ready, by reason, and control planes that no operator has seen."""
    present = [control_plane for control_plane in survey.control_planes if not control_plane.deleting]
    unseen = [
        control_plane.name
        for control_plane in present
        if not control_plane.status.conditions and _age(control_plane, survey) > _NEW
    ]
    # Lost data have a separate check, because their remedies are longer than a finding of this check.
    wrong = [
        control_plane for control_plane in _false(present, READY) if control_plane.condition.reason != Reason.DATA_LOST
    ]
    findings = list(grouped(_KIND, wrong, now=survey.now, describe=_DESCRIBE))
    if unseen:
        problem = "no operator has seen it: it has no status after a minute"
        findings.append(
            error(named(_KIND, unseen), problem, "kubectl get pods -A -l app.kubernetes.io/component=operator")
        )
    return findings + _leaving(survey)


def _leaving(survey: Survey) -> list[Finding]:
    findings = []
    for control_plane in survey.control_planes:
        since = control_plane.metadata.deletion_timestamp
        if since is None or survey.now - since < _LONG:
            continue
        step = find_condition(control_plane.status.conditions, DELETING)
        state = f"it waits in step {step.reason}: {step.message}" if step is not None else "no operator works on it"
        problem = f"it is being deleted since {since:%Y-%m-%d %H:%M} UTC; {state}"
        findings.append(error(f"{_KIND} {control_plane.name}", problem, f"kplane describe {control_plane.name}"))
    return findings


async def check_conditions(survey: Survey) -> Sequence[Finding]:
    """Find deviations from the spec in control planes that serve."""
    findings: list[Finding] = []
    for condition in _OTHERS:
        wrong = _false(_judged(survey.control_planes, condition), condition)
        findings += grouped(_KIND, wrong, now=survey.now, describe=_DESCRIBE, harmless=True)
    blocked = [item for item in _false(survey.control_planes, MIGRATING) if item.condition.reason in _MOVES]
    findings += grouped(_KIND, blocked, now=survey.now, describe="kplane move {name} --abort", harmless=True)
    # The condition has this reason while the deletion keeps the control plane awake, and later during its sleep.
    hibernated = _told(survey.control_planes, HIBERNATED)
    stuck = [item for item in hibernated if item.condition.reason == Reason.NAMESPACE_STUCK]
    findings += grouped(_KIND, stuck, now=survey.now, describe=_DESCRIBE, harmless=True)
    paused = [item.name for item in survey.control_planes if is_true(item.status.conditions, PAUSED)]
    if paused:
        problem = "paused: the operator leaves it as it is, its deletion included"
        findings.append(warning(named(_KIND, paused), problem, f"kplane resume {paused[0]}"))
    return findings


def _judged(control_planes: Iterable[ControlPlane], condition: str) -> Iterable[ControlPlane]:
    """Return the control planes for which a condition is meaningful.

    Add-ons need a running API server that is not deleted.
    """
    if condition != ADDONS_READY:
        return control_planes
    return [
        control_plane
        for control_plane in control_planes
        if control_plane.status.hibernation is None and not control_plane.deleting
    ]


async def check_credentials(survey: Survey) -> Sequence[Finding]:
    """Find published credentials that have expired, or that expire soon without a renewal by the operator."""
    lifetimes = {item.name: item.spec.auth.lifetime_asked for item in survey.classes}
    over, soon = [], []
    for item in survey.control_planes:
        ends = item.status.credentials_expire_at
        if ends is None:
            continue
        lifetime = lifetimes.get(item.spec.class_ref.name) if item.spec.class_ref is not None else None
        # The operator renews credentials when two thirds of their lifetime remain.
        margin = min(_SOON, lifetime / 4) if lifetime is not None else _SOON
        if ends <= survey.now:
            over.append(item.name)
        elif ends <= survey.now + margin:
            soon.append(item.name)
    findings = []
    if over:
        problem = "the credentials in its kubeconfig have ended, and the operator did not renew them"
        findings.append(error(named(_KIND, over), problem, _DESCRIBE.format(name=over[0])))
    if soon:
        problem = "the credentials in its kubeconfig end within minutes, and the operator did not renew them"
        findings.append(warning(named(_KIND, soon), problem, _DESCRIBE.format(name=soon[0])))
    return findings


def _false(control_planes: Iterable[ControlPlane], condition: str) -> list[Told]:
    return [item for item in _told(control_planes, condition) if item.condition.status != "True"]


def _told(control_planes: Iterable[ControlPlane], condition: str) -> list[Told]:
    """Return the condition of this type of each control plane that has one."""
    pairs = (
        (control_plane.name, find_condition(control_plane.status.conditions, condition))
        for control_plane in control_planes
    )
    return [Told(name, value) for name, value in pairs if value is not None]


def _age(control_plane: ControlPlane, survey: Survey) -> timedelta:
    created = control_plane.metadata.creation_timestamp
    return survey.now - created if created is not None else timedelta()
