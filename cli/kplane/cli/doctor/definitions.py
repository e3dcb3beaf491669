"""Checks of the cluster's version, and of the CustomResourceDefinitions of this version of kplane."""

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
"""Minimum version of Kubernetes for kplane."""


async def check_kubernetes(survey: Survey) -> Sequence[Finding]:
    """Check the version of the management cluster."""
    answer = await survey.client.request("GET", "/version")
    running = tuple(int(re.sub(r"[^0-9]", "", answer[part]) or 0) for part in ("major", "minor"))
    if running >= _LEAST:
        return []
    least = ".".join(map(str, _LEAST))
    problem = f"its version is {answer['gitVersion']}, and kplane needs {least} or newer"
    return [error("the management cluster", problem, "kubectl version")]


async def check_definitions(survey: Survey) -> Sequence[Finding]:
    """Compare the definitions of the cluster with those of this version, or at least check that they are served."""
    served = await _served(survey)
    if missing := [kind.resource.crd_name for kind in KINDS if kind.resource.plural not in served]:
        problem = "they do not exist, or are not served yet"
        command = INSTALL if survey.programs is None and not served else await _command(survey)
        return [error(named("CustomResourceDefinition", missing), problem, command)]
    pairs = []
    for ours in crd_manifests():
        name = ours["metadata"]["name"]
        try:
            theirs = await survey.client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        except Forbidden:
            return []  # the kinds are served; only an administrator may compare the definitions
        pairs.append((theirs, ours))
    if all(compare(theirs, ours, command="") is None for theirs, ours in pairs):
        return []
    command = await _command(survey)
    findings = (compare(theirs, ours, command=command) for theirs, ours in pairs)
    return [finding for finding in findings if finding is not None]


async def _command(survey: Survey) -> str:
    """Return the command that updates the older side: this command, or the installation."""
    if survey.programs is None:
        return _UPGRADE
    own = version("kplane")
    if any(is_newer(replica.version, own) for replica in await survey.programs.replicas()):
        return UPGRADE_COMMAND
    return survey.programs.upgrade


async def _served(survey: Survey) -> set[str]:
    info = KINDS[0].resource
    try:
        answer = await survey.client.request("GET", f"/apis/{info.api_version}")
    except NotFound:
        return set()
    return {item["name"] for item in answer["resources"]}


def compare(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, command: str) -> Finding | None:
    """Return a finding if a definition of the cluster is older or newer than ours; None if both are equivalent.

    `command` updates a definition that is not newer.
    """
    subject = f"CustomResourceDefinition {ours['metadata']['name']}"
    versions = {item["name"]: item for item in theirs["spec"]["versions"]}
    if VERSION not in versions or not versions[VERSION]["served"]:
        return error(subject, f"version {VERSION} is not served", command)
    own = next(item for item in ours["spec"]["versions"] if item["name"] == VERSION)
    there, here = (set(_statements(item["schema"]["openAPIV3Schema"])) for item in (versions[VERSION], own))
    lacks, has = here - there, there - here
    if lacks:
        relation = "is older than this kplane" if not has else "is of another version than this kplane"
        return error(subject, f"{relation}: it lacks {_some(lacks)}", command)
    if has:
        problem = f"is newer than this kplane: it also has {_some(has)}"
        return warning(subject, problem, UPGRADE_COMMAND)
    return None


def _some(statements: set[str]) -> str:
    # Fields come first, and outer fields before inner fields.
    shown = sorted(statements, key=lambda each: (" " in each, len(each), each))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{', '.join(shown[:_SHOWN])}{more}"


def _statements(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the statements of a schema: each field, the values of each enumeration, and each rule."""
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
