"""Which controllers an instance runs. Names are those of Kubernetes 1.36 (`kube-controller-manager --help`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kplane.api import ControllersProfile

__all__ = ["CORE", "NODELESS", "controllers"]

CORE: Final = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    # The API server puts finalizers on claims and volumes. These three controllers remove them: without, a namespace
    # with a claim never ends.
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "volumeattributesclass-protection-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)
"""Without any of these a Kubernetes API does not keep what it promises."""

NODELESS: Final = (
    *CORE,
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "statefulset-controller",
    "token-cleaner-controller",
    "ttl-after-finished-controller",
)
"""And workloads, certificates and join tokens, but nothing that looks after nodes or volumes.

Nor validatingadmissionpolicy-status-controller: it keeps the whole OpenAPI schema in memory, 6 MiB, to write warnings
about types into the status of policies. The API server enforces them without it.
"""

_FULL: Final = ("*", "bootstrap-signer-controller", "token-cleaner-controller")
"""All that are on by default, and the two that bootstrap tokens need, which kubeadm turns on as well."""

_NEEDS: Final[Mapping[str, frozenset[str]]] = {
    "serviceaccount-token-controller": frozenset({"sa.key"}),
    "certificatesigningrequest-signing-controller": frozenset({"signing-ca.crt", "signing-ca.key"}),
    "root-ca-certificate-publisher-controller": frozenset({"ca.crt"}),
}


def controllers(wanted: ControllersProfile | Sequence[str], *, keys: Collection[str]) -> tuple[str, ...]:
    """List what `--controllers` gets, for a profile or a list of the same form.

    `keys` are those of the Secret that are there: without the keys that a controller works with it is left out.
    """
    lacking = sorted(name for name, needed in _NEEDS.items() if not needed.issubset(keys))
    listed = _PROFILES[wanted] if isinstance(wanted, ControllersProfile) else wanted
    named = tuple(name for name in listed if name not in lacking)
    return (*named, *(f"-{name}" for name in lacking)) if "*" in named else named


_PROFILES: Final = {
    ControllersProfile.CORE: CORE,
    ControllersProfile.NODELESS: NODELESS,
    ControllersProfile.FULL: _FULL,
}
