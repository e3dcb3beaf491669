"""Checks for the remains of deleted control planes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

from kplane.api import ControlPlane
from kplane.api.names import CONTROL_PLANE_LABEL, MODE_ANNOTATION, RETAINED_LABEL, UID_ANNOTATION
from kplane.cli.advice import command_for
from kplane.cli.doctor.finding import Finding, warning
from kplane.cli.doctor.survey import Survey

__all__ = ["check_leftovers"]

_PREFIXES: Final = ("kplane-cp-", "kplane-cpx-")
_RETAINED: Final = "DataRetained"


async def check_leftovers(survey: Survey) -> Sequence[Finding]:
    """Find retained data, and namespaces whose control plane does not exist."""
    if ControlPlane.resource.kind in survey.unread or not survey.serves_kinds:
        return []  # without the definition of the kind, the namespaces and data of all control planes may still exist
    findings = []
    for namespace in survey.namespaces:
        metadata = namespace["metadata"]
        labels, name = metadata.get("labels") or {}, metadata["name"]
        if name in survey.owners or "deletionTimestamp" in metadata:
            continue
        if labels.get(RETAINED_LABEL) == "true":
            findings.append(_retained(metadata))
        elif CONTROL_PLANE_LABEL in labels or name.startswith(_PREFIXES):
            findings.append(_orphaned(metadata))
    return findings


def _retained(metadata: dict[str, Any]) -> Finding:
    name, former = metadata["name"], _former(metadata)
    mode = (metadata.get("annotations") or {}).get(MODE_ANNOTATION)
    problem = (
        f"it keeps the data and keys of the deleted control plane {former}; take them over, and to destroy them, delete"
        " the control plane then with policy Destroy"
    )
    creation = f"kplane create {former}{f' --mode {shlex.quote(mode)}' if mode else ''} --no-wait"
    return warning(f"Namespace {name}", problem, f"{creation} && {command_for(_RETAINED, name=former)}")


def _orphaned(metadata: dict[str, Any]) -> Finding:
    subject, former = f"Namespace {metadata['name']}", _former(metadata)
    if CONTROL_PLANE_LABEL not in (metadata.get("labels") or {}):
        return warning(subject, "there is no control plane of it", f"kubectl delete namespace {metadata['name']}")
    if UID_ANNOTATION not in (metadata.get("annotations") or {}):
        problem = f"there is no control plane {former}, and it is not known of which one it was; look before you delete"
        return warning(subject, problem, f"kubectl get all,secrets,persistentvolumeclaims -n {metadata['name']}")
    problem = (
        f"control plane {former} is gone, and the operator did not take it down; its data and keys are still there"
    )
    return warning(subject, problem, f"kplane create {former} --no-wait && kplane doctor")


def _former(metadata: dict[str, Any]) -> str:
    return str((metadata.get("labels") or {}).get(CONTROL_PLANE_LABEL, "NAME"))
