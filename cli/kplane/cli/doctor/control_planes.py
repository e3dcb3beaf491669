"""What control planes say that is wrong with them."""

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
"""A deletion that takes longer is worth a look."""
_SOON: Final = timedelta(minutes=5)
_OTHERS: Final = (UP_TO_DATE, SYNCED, STORAGE_SUFFICIENT, LEASES_UNGUARDED, ADDONS_READY, CLASS_FOUND, SUPPORTED)
"""Conditions that do not keep a control plane from being Ready."""
_MOVES: Final = frozenset({"MigrationBlocked"})
"""Reasons of a condition Migrating that is False, by which a move is asked for and not made."""


async def check_not_ready(survey: Survey) -> Sequence[Finding]:
    """Find control planes that are not Ready, by reason, and those that no operator has seen."""
    present = [each for each in survey.control_planes if not each.deleting]
    unseen = [each.name for each in present if not each.status.conditions and _age(each, survey) > _NEW]
    # Lost data have a check of their own: the ways out are longer than a finding of this check.
    wrong = [each for each in _false(present, READY) if each.condition.reason != Reason.DATA_LOST]
    found = list(grouped(_KIND, wrong, now=survey.now, describe=_DESCRIBE))
    if unseen:
        problem = "no operator has seen it: it has no status after a minute"
        found.append(
            error(named(_KIND, unseen), problem, "kubectl get pods -A -l app.kubernetes.io/component=operator")
        )
    return found + _leaving(survey)


def _leaving(survey: Survey) -> list[Finding]:
    found = []
    for each in survey.control_planes:
        since = each.metadata.deletion_timestamp
        if since is None or survey.now - since < _LONG:
            continue
        step = find_condition(each.status.conditions, DELETING)
        why = f"it waits in step {step.reason}: {step.message}" if step is not None else "no operator works on it"
        problem = f"it is being deleted since {since:%Y-%m-%d %H:%M} UTC; {why}"
        found.append(error(f"{_KIND} {each.name}", problem, f"kplane describe {each.name}"))
    return found


async def check_conditions(survey: Survey) -> Sequence[Finding]:
    """Find what is not as asked for in control planes that serve."""
    found: list[Finding] = []
    for condition in _OTHERS:
        wrong = _false(_judged(survey.control_planes, condition), condition)
        found += grouped(_KIND, wrong, now=survey.now, describe=_DESCRIBE, harmless=True)
    blocked = [each for each in _false(survey.control_planes, MIGRATING) if each.condition.reason in _MOVES]
    found += grouped(_KIND, blocked, now=survey.now, describe="kplane move {name} --abort", harmless=True)
    # A control plane that is awake is fine, unless a deletion inside that does not end keeps it so.
    awake = _false(survey.control_planes, HIBERNATED)
    stuck = [each for each in awake if each.condition.reason == Reason.NAMESPACE_STUCK]
    found += grouped(_KIND, stuck, now=survey.now, describe=_DESCRIBE, harmless=True)
    paused = [each.name for each in survey.control_planes if is_true(each.status.conditions, PAUSED)]
    if paused:
        problem = "paused: the operator leaves it as it is, its deletion included"
        found.append(warning(named(_KIND, paused), problem, f"kplane resume {paused[0]}"))
    return found


def _judged(control_planes: Iterable[ControlPlane], condition: str) -> Iterable[ControlPlane]:
    """Return those of which a condition says something: add-ons are written to API servers that run and stay."""
    if condition != ADDONS_READY:
        return control_planes
    return [each for each in control_planes if each.status.hibernation is None and not each.deleting]


async def check_credentials(survey: Survey) -> Sequence[Finding]:
    """Find published credentials that ended, or that end before the operator renewed them."""
    lifetimes = {each.name: each.spec.auth.lifetime_asked for each in survey.classes}
    over, soon = [], []
    for each in survey.control_planes:
        ends = each.status.credentials_expire_at
        if ends is None:
            continue
        lifetime = lifetimes.get(each.spec.class_ref.name) if each.spec.class_ref is not None else None
        # The operator renews them when two thirds of their life are left.
        margin = min(_SOON, lifetime / 4) if lifetime is not None else _SOON
        if ends <= survey.now:
            over.append(each.name)
        elif ends <= survey.now + margin:
            soon.append(each.name)
    found = []
    if over:
        problem = "the credentials in its kubeconfig have ended, and the operator did not renew them"
        found.append(error(named(_KIND, over), problem, _DESCRIBE.format(name=over[0])))
    if soon:
        problem = "the credentials in its kubeconfig end within minutes, and the operator did not renew them"
        found.append(warning(named(_KIND, soon), problem, _DESCRIBE.format(name=soon[0])))
    return found


def _false(control_planes: Iterable[ControlPlane], condition: str) -> list[Told]:
    found = ((each.name, find_condition(each.status.conditions, condition)) for each in control_planes)
    return [Told(name, told) for name, told in found if told is not None and told.status != "True"]


def _age(control_plane: ControlPlane, survey: Survey) -> timedelta:
    made = control_plane.metadata.creation_timestamp
    return survey.now - made if made is not None else timedelta()
