"""In which order objects are made: what others need comes first, what stands in others' way comes last."""

from __future__ import annotations

from typing import Final

from kplane.controlplane_operator.addons.manifest import ObjectId

__all__ = ["CRD_KIND", "FOUNDATION", "rank"]

CRD_KIND: Final = "CustomResourceDefinition"
FOUNDATION: Final = 1
"""Objects up to this rank are there, and CRDs established, before any other is made."""

_RANKS: Final = {
    ("", "Namespace"): 0,
    ("apiextensions.k8s.io", CRD_KIND): 1,
    ("scheduling.k8s.io", "PriorityClass"): 2,
    ("storage.k8s.io", "StorageClass"): 2,
    ("", "ServiceAccount"): 2,
    ("rbac.authorization.k8s.io", "ClusterRole"): 2,
    ("rbac.authorization.k8s.io", "Role"): 2,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): 3,
    ("rbac.authorization.k8s.io", "RoleBinding"): 3,
    ("", "ConfigMap"): 3,
    ("", "Secret"): 3,
    # Last: who answers them, or serves the group, may be one of the bundle's own workloads.
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): 5,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): 5,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): 5,
    ("apiregistration.k8s.io", "APIService"): 5,
}
_OTHERS: Final = 4


def rank(identity: ObjectId) -> int:
    """Return the rank of an object; those of equal rank keep the order of the bundle."""
    return _RANKS.get((identity.key[0], identity.kind), _OTHERS)
