"""Which controllers of kube-controller-manager run for a control plane.

Names are those of Kubernetes 1.36 (`kube-controller-manager --help`).
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["Profile", "controllers_of"]


class Profile(enum.StrEnum):
    """Sets of controllers, each with all of the one before."""

    CORE = "Core"
    """What every Kubernetes API needs: namespaces end, ServiceAccounts and root CAs appear, garbage is collected."""
    NODELESS = "Nodeless"
    """And workloads, certificates and tokens: everything but what looks after nodes and volumes."""
    FULL = "Full"
    """Everything that kube-controller-manager runs by default."""


_SERVICE_ACCOUNT_TOKENS: Final = "serviceaccount-token-controller"
_SIGNING: Final = "certificatesigningrequest-signing-controller"

_CORE: Final = (
    "namespace-controller",
    "serviceaccount-controller",
    _SERVICE_ACCOUNT_TOKENS,
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "resourcequota-controller",
)

_NODELESS: Final = (
    *_CORE,
    "deployment-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "cronjob-controller",
    "ttl-after-finished-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "disruption-controller",
    "horizontal-pod-autoscaler-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    _SIGNING,
    "bootstrap-signer-controller",
    "token-cleaner-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "validatingadmissionpolicy-status-controller",
)


def controllers_of(profile: Profile, *, service_account_key: bool, signing_key: bool) -> str:
    """Return the value of `--controllers`.

    Controllers that would end the process because a key is missing are left out: the one that makes ServiceAccount
    tokens without `service_account_key`, the one that signs CSRs without `signing_key`.
    """
    missing = {*(() if service_account_key else (_SERVICE_ACCOUNT_TOKENS,)), *(() if signing_key else (_SIGNING,))}
    match profile:
        case Profile.FULL:
            return ",".join(["*", "bootstrap-signer-controller", "token-cleaner-controller", *_without(missing)])
        case Profile.NODELESS:
            return ",".join(name for name in _NODELESS if name not in missing)
        case Profile.CORE:
            return ",".join(name for name in _CORE if name not in missing)


def _without(missing: set[str]) -> list[str]:
    return sorted(f"-{name}" for name in missing)
