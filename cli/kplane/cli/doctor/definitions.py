"""Whether the cluster can hold kplane: its version, and the CustomResourceDefinitions of this version of kplane."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from kplane.api.names import VERSION
from kplane.cli.doctor.finding import Finding, error, named, warning
from kplane.cli.doctor.survey import INSTALL, KINDS, UPGRADE_COMMAND, Survey
from kplane.cli.versions import is_newer
from kplane.embedded.manifests import crd_manifests
from kplane.provider import NotFound
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS
from kplane.provider.errors import Forbidden

__all__ = ["check_definitions", "check_kubernetes", "compare"]

_UPGRADE: Final = "kplane upgrade"
_SHOWN: Final = 3
_LEAST: Final = (1, 30)
"""The least version of Kubernetes that kplane is installed on."""


async def check_kubernetes(survey: Survey) -> Sequence[Finding]:
    """Look at the version of the management cluster."""
    answer = await survey.client.request("GET", "/version")
    found = tuple(int(re.sub(r"[^0-9]", "", answer[part]) or 0) for part in ("major", "minor"))
    if found >= _LEAST:
        return []
    least = ".".join(map(str, _LEAST))
    problem = f"its version is {answer['gitVersion']}, and kplane needs {least} or newer"
    return [error("the management cluster", problem, "kubectl version")]


async def check_definitions(survey: Survey) -> Sequence[Finding]:
    """Compare the definitions that are there with those of this version; at least look whether the kinds are served."""
    served = await _served(survey)
    if missing := [kind.resource.crd_name for kind in KINDS if kind.resource.plural not in served]:
        problem = "they do not exist, or are not served yet"
        command = INSTALL if survey.programs is None and not served else await _command(survey)
        return [error(named("CustomResourceDefinition", missing), problem, command)]
    found = []
    for ours in crd_manifests():
        name = ours["metadata"]["name"]
        try:
            theirs = await survey.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        except Forbidden:
            return []  # they are served; only an administrator may compare them
        found.append((theirs, ours))
    if all(compare(theirs, ours, command="") is None for theirs, ours in found):
        return []
    command = await _command(survey)
    findings = (compare(theirs, ours, command=command) for theirs, ours in found)
    return [each for each in findings if each is not None]


async def _command(survey: Survey) -> str:
    """Return the command that makes both of one version: of the two, the older is changed."""
    if survey.programs is None:
        return _UPGRADE
    own = version("kplane")
    if any(is_newer(each.version, own) for each in await survey.programs.replicas()):
        return UPGRADE_COMMAND
    return survey.programs.upgrade


async def _served(survey: Survey) -> set[str]:
    info = KINDS[0].resource
    try:
        answer = await survey.client.request("GET", f"/apis/{info.api_version}")
    except NotFound:
        return set()
    return {each["name"] for each in answer["resources"]}


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, command: str) -> Finding | None:
    """Say whether a definition of the cluster is older or newer than ours; None if both mean the same.

    `command` mends one that is not newer.
    """
    subject = f"CustomResourceDefinition {ours['metadata']['name']}"
    versions = {each["name"]: each for each in theirs["spec"]["versions"]}
    if VERSION not in versions or not versions[VERSION]["served"]:
        return error(subject, f"version {VERSION} is not served", command)
    own = next(each for each in ours["spec"]["versions"] if each["name"] == VERSION)
    there, here = (set(_statements(each["schema"]["openAPIV3Schema"])) for each in (versions[VERSION], own))
    lacks, has = here - there, there - here
    if lacks:
        relation = "is older than this kplane" if not has else "is of another version than this kplane"
        return error(subject, f"{relation}: it lacks {_some(lacks)}", command)
    if has:
        problem = f"is newer than this kplane: it also has {_some(has)}"
        return warning(subject, problem, UPGRADE_COMMAND)
    return None


def _some(statements: set[str]) -> str:
    # The fields first, and of these the outermost.
    shown = sorted(statements, key=lambda each: (" " in each, len(each), each))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{', '.join(shown[:_SHOWN])}{more}"


def _statements(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield what a schema says: each field, the values of each enumeration, and each rule."""
    for name, field in (schema.get("properties") or {}).items():
        yield f"{path}.{name}"
        yield from _statements(field, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), Mapping):
            yield from _statements(schema[key], f"{path}{mark}")
    for value in schema.get("enum") or ():
        yield f"{path} value {value}"
    for rule in schema.get("x-kubernetes-validations") or ():
        yield f"{path or '.'} rule {rule['rule']}"
