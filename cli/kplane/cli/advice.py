"""Remedies for the reasons of conditions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from kplane.api.names import management_namespace
from kplane.api.reasons import Reason
from kplane.cli.kubeconfigs import Management

__all__ = ["addressed", "advice_for", "command_for", "reason_of"]

_WEBHOOKS: Final = (
    "kplane connect {name} -- kubectl get"
    " validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies"
)
_READY_MESSAGE: Final = (
    "kubectl get controlplane {name} -o jsonpath='{{.status.conditions[?(@.type==\"Ready\")].message}}'"
)
_COMMANDS: Final = {
    "AddonUnknown": "kubectl get configmaps -n kplane-system -l controlplane.kplane.dev/addon=true",
    "ClassInvalid": "kubectl get controlplaneclasses",
    "ClassNotFound": "kubectl get controlplaneclasses",
    "ClusterPathInUse": "kubectl get controlplanes -o custom-columns=NAME:.metadata.name,PATH:.status.clusterPath",
    "DataLost": _READY_MESSAGE,
    "DataRetained": (
        "kubectl annotate controlplane {name} controlplane.kplane.dev/adopt="
        '"$(kubectl get namespace {namespace} -o jsonpath='
        "'{{.metadata.annotations.controlplane\\.kplane\\.dev/adoption-token}}')\""
    ),
    "EndpointInUse": "kubectl get controlplanes -o custom-columns=NAME:.metadata.name,ADDRESS:.status.claimedAddress",
    "EndpointInvalid": "kubectl get controlplaneendpoints -o wide",
    "EndpointPending": "kubectl get controlplaneendpoints -o wide",
    "KeysChanged": _READY_MESSAGE,
    "KeysUnusable": _READY_MESSAGE,
    "NamespaceStuck": "kplane connect {name} -- kubectl get namespaces,apiservices",
    "NoSnapshotStorage": "kplane upgrade --set 'etcd.backup.recipients={{age1...}}'",
    "RestoreFailed": "kplane backup list",
    "SharedEtcdUnavailable": "kubectl get pods -n kplane-system -l app.kubernetes.io/component=etcd",
    "WebhookRefused": _WEBHOOKS,
    "WebhooksOnLeases": _WEBHOOKS,
}
"""By reason: the next command to run, for any object with the reason."""
_REASONS: Final[Mapping[str, Reason]] = {str(reason): reason for reason in Reason}
_KUBECTL: Final = re.compile(r"(^|\$\()kubectl ")
_LOCAL: Final = frozenset({"up", "down", "demo", "demo-down"})
"""Commands of kplane without the option --context."""
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


def command_for(reason: str, *, name: str) -> str | None:
    """Return the command that helps an object with a reason; None if `kplane describe` is the best command."""
    command = _COMMANDS.get(reason)
    return command.format(name=name, namespace=management_namespace(name)) if command is not None else None


def addressed(command: str, *, cluster: Management) -> str:
    """Return a command line whose kubectl and kplane commands name their cluster, unless it is the current context."""
    if cluster.context is None:
        return command
    return " && ".join(_addressed(part, cluster) for part in command.split(" && "))


def _addressed(command: str, cluster: Management) -> str:
    option = f"--context {shlex.quote(cluster.context or '')}"
    program, _, rest = command.partition(" ")
    if program == "kplane" and rest.partition(" ")[0] not in _LOCAL:
        return f"{command} {option}"
    # kplane finds the kubeconfig itself.
    place = f"KUBECONFIG={shlex.quote(cluster.kubeconfig)} " if cluster.kubeconfig is not None else ""
    return _KUBECTL.sub(lambda found: f"{found[1]}{place}kubectl {option} ", command)


def advice_for(reason: str) -> str:
    """Return a short remedy for a reason; empty if this version of kplane does not know the reason."""
    entry = reason_of(reason)
    return _LINK.sub(r"\1", entry.meaning).replace("`", "") if entry is not None else ""


def reason_of(word: str) -> Reason | None:
    """Return a reason of the operator; None if the reason belongs to another program or version."""
    return _REASONS.get(word)
