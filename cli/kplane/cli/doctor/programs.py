"""Whether the programs of kplane run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from kplane.api import ControlPlane
from kplane.api.names import GATEWAY_LEASE_LABEL, GATEWAY_NAMESPACE, OPERATOR_LEASE, OPERATOR_LEASE_NAMESPACE
from kplane.cli.doctor.finding import Finding, error, named, warning
from kplane.cli.doctor.survey import INSTALL, UPGRADE_COMMAND, Survey
from kplane.cli.programs import Program
from kplane.cli.versions import is_newer
from kplane.provider import ProviderError
from kplane.provider.client.resources import LEASES

__all__ = ["check_controllers_credentials", "check_gateways", "check_leader", "check_programs", "ended"]

_PODS: Final = "kubectl get pods -A -l app.kubernetes.io/part-of=kplane"
_EXPIRY: Final = "kplane_credentials_expiry_seconds"
_SLACK: Final = timedelta(seconds=10)
"""Clocks and renewals differ by so much."""


async def check_programs(survey: Survey) -> Sequence[Finding]:
    """Find programs that are missing, not ready, or of another version."""
    if survey.programs is None:
        if "Pod" in survey.unread:
            return []  # another check says so
        if survey.serves_kinds:
            problem = "no program of kplane is found: they run elsewhere, or not at all"
            return [warning("operator", problem, _PODS)]
        problem = "no program of kplane is found, so no control plane is created, changed or deleted"
        return [error("operator", problem, INSTALL)]
    replicas = await survey.programs.replicas()
    present = {each.program for each in replicas}
    nowhere = f"it does not run: there is none among the {survey.programs.place}"
    found = [error(each, nowhere, survey.programs.start) for each in survey.programs.required if each not in present]
    own = version("kplane")
    for each in replicas:
        if each.problem:
            found.append(error(f"{each.program} {each.name}", f"not ready: {each.problem}", each.look))
        elif each.version and each.version != own:
            problem = f"it is of version {each.version}, and this command of version {own}"
            command = UPGRADE_COMMAND if is_newer(each.version, own) else survey.programs.upgrade
            found.append(warning(f"{each.program} {each.name}", problem, command))
    return found


async def check_controllers_credentials(survey: Survey) -> Sequence[Finding]:
    """Ask the operator which credentials of controllers have ended; no status has them."""
    if survey.programs is None:
        return []
    replicas = [
        each for each in await survey.programs.replicas() if each.program is Program.OPERATOR and not each.problem
    ]
    asked = (survey.programs.ask(each, "/metrics") for each in replicas)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found, over, closed = [], set[str](), dict[str, Exception]()
    for replica, answer in zip(replicas, answers, strict=True):
        if isinstance(answer, str):
            over |= _ended_credentials(answer)
        elif isinstance(answer, (ProviderError, OSError, ValueError, LookupError)):
            closed[replica.name] = answer
        else:
            raise answer
    if closed:
        problem = (
            f"the credentials of controllers are not checked: {next(iter(closed.values()))}; in a cluster, that needs"
            " the verb get on pods/proxy, and the API server among the chart's networkPolicy.metricsFrom"
        )
        found.append(warning(named(Program.OPERATOR, closed), problem, replicas[0].look))
    if over:
        problem = "the credentials of its controllers have ended, and the operator did not renew them"
        found.append(error(named(ControlPlane.resource.kind, over), problem, f"kplane describe {min(over)}"))
    return found


def _ended_credentials(text: str) -> set[str]:
    return {
        sample.labels["control_plane"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == _EXPIRY and sample.labels.get("secret") == "controllers" and sample.value <= 0
    }


async def check_leader(survey: Survey) -> Sequence[Finding]:
    """Find that no operator holds its Lease."""
    if survey.programs is None or Program.OPERATOR not in survey.programs.required:
        return []
    leases = (await survey.client.list(LEASES, namespace=OPERATOR_LEASE_NAMESPACE)).items
    found = []
    for lease in leases:
        if lease["metadata"]["name"] == OPERATOR_LEASE and (since := ended(lease, now=survey.now)):
            subject = f"Lease {OPERATOR_LEASE_NAMESPACE}/{OPERATOR_LEASE}"
            command = "kubectl get pods -A -l app.kubernetes.io/component=operator"
            found.append(error(subject, f"no operator works: {since}", command))
    return found


async def check_gateways(survey: Survey) -> Sequence[Finding]:
    """Find that no replica of the gateway is there any more. The operator ignores a single one that ended."""
    leases = (await survey.client.list(LEASES, namespace=GATEWAY_NAMESPACE, label_selector=GATEWAY_LEASE_LABEL)).items
    found = [(lease["metadata"]["name"], ended(lease, now=survey.now)) for lease in leases]
    if not found or not all(since for _, since in found):
        return []
    problem = f"no replica of the gateway renews its Lease: {found[-1][1]}; moves of control planes wait for one"
    subject = named("Lease", (f"{GATEWAY_NAMESPACE}/{name}" for name, _ in found))
    return [warning(subject, problem, "kubectl get pods -A -l app.kubernetes.io/component=gateway")]


def ended(lease: Mapping[str, Any], *, now: datetime) -> str:
    """Say since when a Lease is not renewed; empty if it is."""
    spec = lease.get("spec") or {}
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return "it has no holder"
    renewed = datetime.fromisoformat(spec["renewTime"])
    lasts = timedelta(seconds=spec.get("leaseDurationSeconds") or 0)
    if renewed > now + lasts + _SLACK:
        return f"{spec['holderIdentity']} renewed it at {renewed:%Y-%m-%d %H:%M:%S} UTC, which is in the future"
    if now <= renewed + lasts + _SLACK:
        return ""
    return f"{spec['holderIdentity']} renewed it last at {renewed:%Y-%m-%d %H:%M:%S} UTC"
