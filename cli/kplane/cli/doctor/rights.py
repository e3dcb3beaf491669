"""What the user may not do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kplane.api.names import GROUP, management_namespace
from kplane.cli.doctor.finding import Finding, error, warning
from kplane.cli.doctor.survey import Survey
from kplane.provider import Client

__all__ = ["NEEDED", "Needed", "check_rights", "check_unread"]

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_AUTHENTICATION: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_ROLE: Final = "kplane-cli"


@dataclass(frozen=True, slots=True)
class Needed:
    """What one resource needs, and for what."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    use: str
    essential: bool = False
    """Whether nearly nothing works without."""
    in_control_planes: bool = False
    """Whether it is about the namespaces of control planes."""


NEEDED: Final = (
    Needed(GROUP, "controlplanes", ("get", "list", "watch"), "all commands", essential=True),
    Needed(GROUP, "controlplanes", ("create", "patch", "delete"), "create, move, sleep, wake, pause, delete"),
    Needed(GROUP, "controlplaneregistrations", ("list", "create", "patch", "delete"), "describe, register, unregister"),
    Needed(GROUP, "controlplanesnapshots", ("list", "create", "delete"), "backup"),
    Needed(GROUP, "controlplaneendpoints", ("list", "create"), "doctor, adopt"),
    Needed("", "secrets", ("get",), "kubeconfig, connect, token", in_control_planes=True),
    Needed("", "events", ("list", "watch"), "events"),
    Needed("", "namespaces", ("list",), "doctor"),
    Needed("", "pods", ("list",), "doctor, logs, top"),
    Needed("", "pods/log", ("get",), "logs"),
)


async def check_rights(survey: Survey) -> Sequence[Finding]:
    """Ask the API server for each verb that the commands need, and find those that the user may not use."""
    namespace = management_namespace(survey.control_planes[0].name) if survey.control_planes else None
    answers = await asyncio.gather(*(_refused(survey.client, each, namespace=namespace) for each in NEEDED))
    refused = [(needed, verbs) for needed, verbs in zip(NEEDED, answers, strict=True) if verbs]
    user = await _user(survey.client) if refused else ""
    found = []
    for needed, verbs in refused:
        told = error if needed.essential else warning
        problem = f"{user} may not {', '.join(verbs)} {needed.resource}, for: {needed.use}"
        found.append(told(needed.resource, problem, _grant(needed, verbs, user=user)))
    return found


async def check_unread(survey: Survey) -> Sequence[Finding]:
    """Tell which objects could not be read, so that they were not checked."""
    return [
        warning(kind, f"not checked, because they could not be read: {why}", f"kubectl get {kind.lower()}s -A")
        for kind, why in survey.unread.items()
    ]


async def _refused(client: Client, needed: Needed, *, namespace: str | None) -> Sequence[str]:
    resource, _, subresource = needed.resource.partition("/")
    attributes: dict[str, Any] = {"group": needed.group, "resource": resource, "subresource": subresource}
    if needed.in_control_planes and namespace is not None:
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


def _grant(needed: Needed, verbs: Sequence[str], *, user: str) -> str:
    """Return the command that an administrator runs."""
    group = f".{needed.group}" if needed.group else ""
    role = f"{_ROLE}-{needed.resource.replace('/', '-')}-{verbs[0]}"
    resource, slash, subresource = needed.resource.partition("/")
    return (
        f"kubectl create clusterrole {role} --verb={','.join(verbs)} --resource={resource}{group}{slash}{subresource}"
        f" && kubectl create clusterrolebinding {role} --clusterrole={role} --user={user}"
    )
