"""Writes events.md: the reasons of the Events that both operators record."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kplane.api import RotationPhase
from kplane.mcm.reasons import Reason
from tools.reference.markdown import code, page, table
from tools.reference.sources import ROOT, attributes, modules, parsed

__all__ = ["events", "recorded"]

_MEANINGS: Final[Mapping[str, str]] = {
    "AdmissionDeleted": "the operator deleted a webhook configuration or a policy that `delete-admission` named",
    "AdmissionNotFound": "`delete-admission` named a webhook configuration or a policy that is not there",
    "AuthoritiesRenewed": "the operator issued certificates of CAs anew, because their life began in the future",
    "Cloned": "a new control plane has the objects of its source, with fresh uids",
    "CredentialsNotRevoked": "credentials stay valid at an adopted API server until they expire",
    "CredentialsRejected": "the API server refuses the published credentials, and the operator repairs them",
    "DataAdopted": "the control plane took over retained data",
    "DataDeleted": "the keys of a deleted control plane are deleted",
    "DataLeft": "the data belong to another owner, and stay",
    "DataRetained": "the data of an adopted control plane stay",
    "Deleted": "the control plane is gone; the message says what became of the data",
    "DeletedInUse": "a class was deleted while control planes name it",
    "DeletionFailed": "the removal fails; the message says why, and the operator retries",
    "EndNotConfirmed": "the removal continues without a confirmation that instances ended",
    "KeysRestored": "the operator put the keys back, for example after the namespace was deleted",
    "MetricsNotScraped": "the operator cannot write a ServiceMonitor",
    "MigrationAborted": "the control plane stays where it lived",
    "MigrationCompleted": "of the former home nothing is left",
    "MigrationCut": "the control plane lives in its new home; the message says how long writes waited",
    "MigrationRetried": "the change of the home failed; the operator retries",
    "MigrationStarted": "the data begin to move",
    "PolicyUnclear": "class and status name two deletion policies; the operator keeps the data",
    "Restored": "a new control plane has the data of a snapshot",
    "TemplateFailed": "a control plane starts without a template, which takes longer",
    "VersionChanged": "the API server has another version than before",
    **{
        f"Rotation{phase}": f"{text}; see `status.rotation`"
        for phase, text in {
            RotationPhase.TRUSTING: "new CAs and a new ServiceAccount key are trusted next to the old ones",
            RotationPhase.OVERLAPPING: "the new ones issue credentials",
            RotationPhase.DROPPING: "credentials of the old ones are removed",
            RotationPhase.DONE: "only the new ones are trusted",
        }.items()
    },
}
"""Meanings of the reasons in calls of `events.record`. The generation fails for a reason without a meaning."""

_OPERATOR: Final = ROOT / "controlplane_operator" / "kplane" / "controlplane_operator"
_BY_NAME: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("snapshots/restoring.py", "done"): ("Cloned", "Restored"),
    ("status/writer.py", "reason"): (),  # conditions and _OVER, which other tables have
}
"""The reasons that a variable of a call can hold, by the module of the call and the name of the variable."""


def events() -> str:
    """Return the page."""
    return page(
        "Events",
        "This page lists the Events of kplane's own objects, by their reason.",
        "Kubernetes deletes an Event after an hour. Conditions stay, see [reasons of conditions](conditions.md)."
        " `kubectl describe controlplane acme` shows both.",
        "## Events of controlplane-operator",
        "The operator records an Event for each condition that changes its status or reason. The reason of the Event is"
        " that of the condition. The Event is a warning if the status is False, and the reason is no part of normal"
        " work. Besides, there are these:",
        table(["reason", "type", "meaning"], _recorded()),
        "## Events of a condition that goes away",
        "Some conditions exist only while they have something to tell.",
        table(["reason", "type", "meaning"], _over()),
        "## Events of mcm",
        "mcm records these on the registration, or on the endpoint if it follows endpoints.",
        table(["reason", "type", "meaning"], _instances()),
    )


def _recorded() -> list[list[str]]:
    types: dict[str, str] = {}
    for path in modules("controlplane_operator"):
        types |= recorded(parsed(path), module=path.relative_to(_OPERATOR).as_posix())
    if types.keys() != _MEANINGS.keys():
        differ = sorted(types.keys() ^ _MEANINGS.keys())
        raise LookupError(f"failed to describe Events: _MEANINGS and the code differ in {differ}; correct _MEANINGS")
    return [[code(reason), types[reason], _MEANINGS[reason]] for reason in sorted(types)]


def recorded(tree: ast.Module, *, module: str) -> Mapping[str, str]:
    """Return the type of each Event that a module records, by its reason.

    Raises LookupError if the reason or the type in a call of `record` is not a literal.
    """
    types: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="record"), args=arguments, keywords=keywords):
                given = {keyword.arg: keyword.value for keyword in keywords}
                if len(arguments) > 1 or "reason" not in given:
                    problem = f"{module}:{node.lineno}: `record` has no keyword reason"
                    raise LookupError(f"failed to describe Events: {problem}; give it as a keyword")
                if reasons := _reasons(given["reason"], module=module):
                    types |= dict.fromkeys(reasons, _type(given.get("warning"), module=module))
            case _:
                pass
    return types


def _type(warning: ast.expr | None, *, module: str) -> str:
    match warning:
        case None | ast.Constant(value=False):
            return "Normal"
        case ast.Constant(value=True):
            return "Warning"
        case _:
            problem = f"{module}:{warning.lineno}: warning={ast.unparse(warning)} is no literal"
            raise LookupError(f"failed to describe Events: {problem}; record each type by a call of its own")


def _reasons(value: ast.expr, *, module: str) -> tuple[str, ...]:
    """Return the possible values of the argument `reason` of a call. Raises LookupError if they are unknown."""
    match value:
        case ast.Constant(value=str(reason)):
            return (reason,)
        case ast.Name(id=name) if (module, name) in _BY_NAME:
            return _BY_NAME[module, name]
        case ast.JoinedStr(values=[ast.Constant(value="Rotation"), ast.FormattedValue()]):
            return tuple(f"Rotation{phase}" for phase in RotationPhase)
        case ast.Attribute(value=ast.Name(id="Reason"), attr="DATA_RETAINED"):
            return ("DataRetained",)
        case _:
            problem = f"{module}:{value.lineno}: reason {ast.unparse(value)} is unknown"
            raise LookupError(f"failed to describe Events: {problem}; add it to _reasons")


def _over() -> Iterator[list[str]]:
    for reason, text in sorted(map(_pair, _items(_OPERATOR / "status" / "writer.py", "_OVER").values())):
        yield [code(reason), "Normal", text]


def _instances() -> Iterator[list[str]]:
    below = ROOT / "mcm" / "kplane" / "mcm"
    items = _items(below / "status" / "events.py", "_EVENT_KINDS")
    kinds = {key: _pair(value) for key, value in items.items()}
    [reasons] = [node for node in parsed(below / "reasons.py").body if isinstance(node, ast.ClassDef)]
    described = {attribute.name: attribute.documentation for attribute in attributes(reasons.body)}
    for reason in Reason:
        if reason is not Reason.STARTING:
            type_, shown = kinds.get(f"Reason.{reason.name}", ("Warning", str(reason)))
            yield [code(shown), type_, described[reason.name]]


def _items(path: Path, name: str) -> Mapping[str, ast.expr]:
    """Return the values of a dictionary in a module, by the source text of their keys."""
    for attribute in attributes(parsed(path).body):
        if attribute.name == name and isinstance(attribute.value, ast.Dict):
            pairs = zip(attribute.value.keys, attribute.value.values, strict=True)
            return {ast.unparse(key): value for key, value in pairs if key}
    raise LookupError(f"failed to describe Events: {path} has no dictionary {name}")


def _pair(value: ast.expr) -> tuple[str, str]:
    """Return the two texts of a tuple, or of a call with two arguments."""
    match value:
        case ast.Tuple(elts=[ast.Constant(value=str(first)), ast.Constant(value=str(second))]):
            return first, second
        case ast.Call(args=[ast.Constant(value=str(first)), ast.Constant(value=str(second))]):
            return first, second
        case _:
            raise LookupError(f"failed to describe Events: expected two texts, found {ast.unparse(value)}")
