"""Checks of the rights of the user."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from kplane.api.names import GROUP, management_namespace
from kplane.cli.doctor.finding import Finding, error, warning
from kplane.cli.doctor.survey import KINDS, Survey
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES, PODS

__all__ = ["NEEDED", "Needed", "check_rights", "check_unread"]

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_AUTHENTICATION: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_ROLE: Final = "kplane-cli"
_PLURALS: Final = {
    **{kind.resource.kind: kind.resource.plural for kind in KINDS},
    **{resource.kind: resource.plural for resource in (NAMESPACES, PODS)},
}


class Where(Enum):
    """Namespaces in which a right is needed."""

    EVERYWHERE = auto()
    CONTROL_PLANES = auto()
    """The namespaces of control planes. The first control plane stands for all."""
    PROGRAMS = auto()
    """The namespace of the programs of kplane."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Rights to a resource, and the commands that need them."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    use: str
    essential: bool = False
    """Whether nearly all commands need the right."""
    where: Where = Where.EVERYWHERE


_FORWARD: Final = "connect, token and join-token, if the address is a Service"
NEEDED: Final = (
    Needed(GROUP, "controlplanes", ("get", "list", "watch"), "all commands", essential=True),
    Needed(GROUP, "controlplanes", ("create", "patch", "delete"), "create, move, sleep, wake, pause, delete"),
    Needed(GROUP, "controlplaneregistrations", ("list", "create", "patch", "delete"), "describe, register, unregister"),
    Needed(GROUP, "controlplanesnapshots", ("list", "create", "delete"), "backup"),
    Needed(GROUP, "controlplaneendpoints", ("list", "create"), "doctor, adopt"),
    Needed("", "secrets", ("get",), "kubeconfig, connect, token", where=Where.CONTROL_PLANES),
    Needed("", "services", ("get",), _FORWARD, where=Where.CONTROL_PLANES),
    Needed("", "pods", ("get",), _FORWARD, where=Where.CONTROL_PLANES),
    Needed("", "pods/portforward", ("create",), _FORWARD, where=Where.CONTROL_PLANES),
    Needed("", "events", ("list", "watch"), "events"),
    Needed("", "namespaces", ("list",), "doctor"),
    Needed("", "pods", ("list",), "doctor, logs, top"),
    Needed("", "pods/log", ("get",), "logs", where=Where.CONTROL_PLANES),
    Needed("", "pods/log", ("get",), "logs, support-bundle", where=Where.PROGRAMS),
    Needed("", "pods/proxy", ("get",), "doctor, top, support-bundle", where=Where.PROGRAMS),
    Needed("coordination.k8s.io", "leases", ("list",), "doctor, support-bundle"),
    Needed("apiextensions.k8s.io", "customresourcedefinitions", ("get", "list"), "doctor, support-bundle"),
)


async def check_rights(survey: Survey) -> Sequence[Finding]:
    """Ask the API server for each verb that the commands need, and find the verbs that the user may not use."""
    are_processes = survey.programs is not None and survey.programs.namespace is None
    all_needed = [
        needed_right for needed_right in NEEDED if needed_right.where is not Where.PROGRAMS or not are_processes
    ]
    requests = (
        _refused(survey.client, needed_right, namespace=_asked(needed_right, survey)) for needed_right in all_needed
    )
    answers = await asyncio.gather(*requests)
    refused = [(needed, verbs) for needed, verbs in zip(all_needed, answers, strict=True) if verbs]
    user = await _user(survey.client) if refused else ""
    findings = []
    for needed, verbs in refused:
        finding_of = error if needed.essential else warning
        namespace = _granted(needed, survey)
        place = f" in namespace {namespace}" if namespace is not None else ""
        problem = f"{user} may not {', '.join(verbs)} {needed.resource}{place}, for: {needed.use}"
        findings.append(finding_of(needed.resource, problem, _grant(needed, verbs, user=user, namespace=namespace)))
    return findings


def _asked(needed: Needed, survey: Survey) -> str | None:
    """Return the namespace of an access review; None for all namespaces."""
    if needed.where is Where.CONTROL_PLANES and survey.control_planes:
        return management_namespace(survey.control_planes[0].name)
    if needed.where is Where.PROGRAMS and survey.programs is not None:
        return survey.programs.namespace
    return None


def _granted(needed: Needed, survey: Survey) -> str | None:
    """Return the namespace of a grant; None if the grant must be for all namespaces."""
    if needed.where is Where.EVERYWHERE:
        return None
    unknown = {Where.CONTROL_PLANES: "kplane-cp-NAME", Where.PROGRAMS: "kplane-system"}
    return _asked(needed, survey) or unknown[needed.where]


async def check_unread(survey: Survey) -> Sequence[Finding]:
    """Report the kinds of objects that could not be read, and so were not checked."""
    return [
        warning(kind, f"not checked, because they could not be read: {cause}", f"kubectl get {_PLURALS[kind]} -A")
        for kind, cause in survey.unread.items()
    ]


async def _refused(client: Client, needed: Needed, *, namespace: str | None) -> Sequence[str]:
    resource, _, subresource = needed.resource.partition("/")
    attributes: dict[str, Any] = {"group": needed.group, "resource": resource, "subresource": subresource}
    if namespace is not None:
        attributes["namespace"] = namespace
    refused = []
    for verb in needed.verbs:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "verb": verb}},
        }
        answer = await client.request("POST", _AUTHORIZATION, body=review)
        if not answer["status"].get("allowed"):
            refused.append(verb)
    return refused


async def _user(client: Client) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", _AUTHENTICATION, body=review)
    return str(answer["status"]["userInfo"].get("username", ""))


def _grant(needed: Needed, verbs: Sequence[str], *, user: str, namespace: str | None) -> str:
    """Return the command for an administrator that grants only these verbs, in this namespace only."""
    group = f".{needed.group}" if needed.group else ""
    role = f"{_ROLE}-{needed.resource.replace('/', '-')}-{verbs[0]}"
    resource, slash, subresource = needed.resource.partition("/")
    rule = f"--verb={','.join(verbs)} --resource={resource}{group}{slash}{subresource}"
    subject = f"--user={shlex.quote(user)}"
    if namespace is None:
        return (
            f"kubectl create clusterrole {role} {rule}"
            f" && kubectl create clusterrolebinding {role} --clusterrole={role} {subject}"
        )
    return (
        f"kubectl create role {role} -n {shlex.quote(namespace)} {rule}"
        f" && kubectl create rolebinding {role} -n {shlex.quote(namespace)} --role={role} {subject}"
    )
