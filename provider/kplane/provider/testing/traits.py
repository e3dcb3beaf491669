"""Traits of kinds in a kube-apiserver, from the strategies in pkg/registry of Kubernetes 1.36."""

from __future__ import annotations

import base64
from typing import Any, Final

from kplane.provider.client.kinds import BUILT_IN, parse_kind
from kplane.provider.client.resources import CONFIG_MAPS, LEASES, SECRETS, Resource

__all__ = ["counts_generations", "has_status", "is_created_by_update", "needs_version", "normalized"]

_OMITTED_IF_EMPTY: Final = frozenset({"labels", "annotations", "finalizers", "ownerReferences"})

_WITH_GENERATION: Final = frozenset(
    [
        "CronJob",
        "CustomResourceDefinition",
        "DaemonSet",
        "Deployment",
        "DeviceClass",
        "EndpointSlice",
        "FlowSchema",
        "Ingress",
        "IngressClass",
        "Job",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "PodTemplate",
        "PriorityClass",
        "PriorityLevelConfiguration",
        "ReplicaSet",
        "ReplicationController",
        "ResourceSlice",
        "StatefulSet",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ]
)
_WITH_STATUS: Final = frozenset(
    [
        "APIService",
        "CertificateSigningRequest",
        "CronJob",
        "CustomResourceDefinition",
        "DaemonSet",
        "Deployment",
        "FlowSchema",
        "HorizontalPodAutoscaler",
        "Ingress",
        "Job",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "PodDisruptionBudget",
        "PriorityLevelConfiguration",
        "ReplicaSet",
        "ReplicationController",
        "ResourceClaim",
        "ResourceQuota",
        "Service",
        "ServiceCIDR",
        "StatefulSet",
        "ValidatingAdmissionPolicy",
        "VolumeAttachment",
    ]
)
_CREATED_BY_UPDATE: Final = frozenset(
    [
        "ClusterRole",
        "ClusterRoleBinding",
        "Endpoints",
        "Event",
        "Lease",
        "LimitRange",
        "Role",
        "RoleBinding",
        "RuntimeClass",
        "Service",
    ]
)
_WITH_VERSION: Final = frozenset(
    [
        "CSIDriver",
        "CSINode",
        "CSIStorageCapacity",
        "Lease",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "PodDisruptionBudget",
        "RuntimeClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "VolumeAttachment",
    ]
)


def _is_custom(resource: Resource) -> bool:
    return str(parse_kind(resource)) not in BUILT_IN


def counts_generations(resource: Resource) -> bool:
    """Tell whether objects of a kind have metadata.generation."""
    return _is_custom(resource) or resource.kind in _WITH_GENERATION


def has_status(resource: Resource) -> bool:
    """Tell whether a kind has the subresource `status`."""
    return _is_custom(resource) or resource.kind in _WITH_STATUS


def is_created_by_update(resource: Resource) -> bool:
    """Tell whether an update of a missing object creates the object."""
    return not _is_custom(resource) and resource.kind in _CREATED_BY_UPDATE


def needs_version(resource: Resource) -> bool:
    """Tell whether the API server refuses an update without a resourceVersion."""
    return _is_custom(resource) or resource.kind in _WITH_VERSION


def normalized(resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
    """Return an object without fields that the Go types omit, and with `stringData` of a Secret moved to `data`."""
    metadata = _without_null(body.get("metadata") or {})
    metadata = {key: value for key, value in metadata.items() if value or key not in _OMITTED_IF_EMPTY}
    body = (body if _is_custom(resource) else _without_null(body)) | {"metadata": metadata}
    if resource == SECRETS and (texts := body.pop("stringData", None)):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        body["data"] = (body.get("data") or {}) | encoded
    if resource in {CONFIG_MAPS, SECRETS} and not body.get("data"):
        body.pop("data", None)
    return {"spec": {}} | body if resource == LEASES else body


def _without_null(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_null(content) if isinstance(content, dict) else content
        for key, content in value.items()
        if content is not None
    }
