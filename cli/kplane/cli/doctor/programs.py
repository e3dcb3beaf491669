"""Checks of the programs of kplane."""

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
"""Tolerance for differences of clocks and of renewal times."""


async def check_programs(survey: Survey) -> Sequence[Finding]:
    """Find programs that are missing, not ready, or of another version."""
    if survey.programs is None:
        if "Pod" in survey.unread:
            return []  # the check of unread objects reports it
        if survey.serves_kinds:
            problem = "no program of kplane is found: they run elsewhere, or not at all"
            return [warning("operator", problem, _PODS)]
        problem = "no program of kplane is found, so no control plane is created, changed or deleted"
        return [error("operator", problem, INSTALL)]
    replicas = await survey.programs.replicas()
    present = {item.program for item in replicas}
    nowhere = f"it does not run: there is none among the {survey.programs.place}"
    findings = [error(item, nowhere, survey.programs.start) for item in survey.programs.required if item not in present]
    own = version("kplane")
    for item in replicas:
        if item.problem:
            findings.append(error(f"{item.program} {item.name}", f"not ready: {item.problem}", item.look))
        elif item.version and item.version != own:
            problem = f"it is of version {item.version}, and this command of version {own}"
            command = UPGRADE_COMMAND if is_newer(item.version, own) else survey.programs.upgrade
            findings.append(warning(f"{item.program} {item.name}", problem, command))
    return findings


async def check_controllers_credentials(survey: Survey) -> Sequence[Finding]:
    """Find expired credentials of controllers in the metrics of the operator, because no status contains them."""
    if survey.programs is None:
        return []
    replicas = [
        item for item in await survey.programs.replicas() if item.program is Program.OPERATOR and not item.problem
    ]
    requests = (survey.programs.ask(item, "/metrics") for item in replicas)
    answers = await asyncio.gather(*requests, return_exceptions=True)
    findings, over, closed = [], set[str](), dict[str, Exception]()
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
        findings.append(warning(named(Program.OPERATOR, closed), problem, replicas[0].look))
    if over:
        problem = "the credentials of its controllers have ended, and the operator did not renew them"
        findings.append(error(named(ControlPlane.resource.kind, over), problem, f"kplane describe {min(over)}"))
    return findings


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
    findings = []
    for lease in leases:
        if lease["metadata"]["name"] == OPERATOR_LEASE and (since := ended(lease, now=survey.now)):
            subject = f"Lease {OPERATOR_LEASE_NAMESPACE}/{OPERATOR_LEASE}"
            command = "kubectl get pods -A -l app.kubernetes.io/component=operator"
            findings.append(error(subject, f"no operator works: {since}", command))
    return findings


async def check_gateways(survey: Survey) -> Sequence[Finding]:
    """Find that no replica of the gateway is alive.

    The operator ignores a single dead replica, so the check does too.
    """
    leases = (await survey.client.list(LEASES, namespace=GATEWAY_NAMESPACE, label_selector=GATEWAY_LEASE_LABEL)).items
    states = [(lease["metadata"]["name"], ended(lease, now=survey.now)) for lease in leases]
    if not states or not all(since for _, since in states):
        return []
    problem = f"no replica of the gateway renews its Lease: {states[-1][1]}; moves of control planes wait for one"
    subject = named("Lease", (f"{GATEWAY_NAMESPACE}/{name}" for name, _ in states))
    return [warning(subject, problem, "kubectl get pods -A -l app.kubernetes.io/component=gateway")]


def ended(lease: Mapping[str, Any], *, now: datetime) -> str:
    """Return since when a Lease is not renewed; empty if it is renewed."""
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
