"""Profiles of controllers. Names are from Kubernetes 1.36 (`kube-controller-manager --help`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kplane.api import ControllersProfile

__all__ = ["CORE", "NODELESS", "controllers"]

CORE: Final = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    # The API server puts finalizers on claims and volumes, and these three controllers remove them. Without these
    # controllers, a namespace with a claim terminates for ever.
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "volumeattributesclass-protection-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
)
"""Controllers without which a Kubernetes API does not keep its promises."""

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
"""CORE, and controllers of workloads, certificates and join tokens; no controllers of nodes or volumes.

The list omits validatingadmissionpolicy-status-controller. This controller keeps the whole OpenAPI schema in memory,
6 MiB, to write warnings about types into the status of policies. The API server enforces policies without it.
"""

_FULL: Final = ("*", "bootstrap-signer-controller", "token-cleaner-controller")
"""Controllers that are on by default, and the two for bootstrap tokens, which kubeadm turns on as well."""

_NEEDS: Final[Mapping[str, frozenset[str]]] = {
    "serviceaccount-token-controller": frozenset({"sa.key"}),
    "certificatesigningrequest-signing-controller": frozenset({"signing-ca.crt", "signing-ca.key"}),
    "root-ca-certificate-publisher-controller": frozenset({"ca.crt"}),
}


def controllers(wanted: ControllersProfile | Sequence[str], *, keys: Collection[str]) -> tuple[str, ...]:
    """Return the value of `--controllers` for a profile, or for a list of the same form.

    `keys` are the names of the keys in the Secret. A controller is left out if a key that it needs is missing.
    """
    missing = sorted(name for name, needed in _NEEDS.items() if not needed.issubset(keys))
    listed = _PROFILES[wanted] if isinstance(wanted, ControllersProfile) else _canonical(wanted)
    named = tuple(name for name in listed if name not in missing)
    return (*named, *(f"-{name}" for name in missing)) if "*" in named else named


def _canonical(names: Sequence[str]) -> Sequence[str]:
    """Return the names sorted and without repetitions, so that another order restarts no instance.

    A list with a controller and its exclusion stays as it is: kube-controller-manager uses the first of them.
    """
    distinct = set(names)
    return names if any(f"-{name}" in distinct for name in distinct) else sorted(distinct)


_PROFILES: Final = {
    ControllersProfile.CORE: CORE,
    ControllersProfile.NODELESS: NODELESS,
    ControllersProfile.FULL: _FULL,
}
