"""Kinds of objects, and their URL paths on an API server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from kplane.provider.errors import ProviderError

__all__ = [
    "CLUSTER_ROLES",
    "CLUSTER_ROLE_BINDINGS",
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "DEPLOYMENTS",
    "DNS_LABEL",
    "DNS_SUBDOMAIN",
    "EVENTS",
    "LEASES",
    "MUTATING_ADMISSION_POLICIES",
    "MUTATING_WEBHOOK_CONFIGURATIONS",
    "NAMESPACES",
    "NETWORK_POLICIES",
    "NODES",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "REPLICA_SETS",
    "ROLES",
    "ROLE_BINDINGS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFUL_SETS",
    "VALIDATING_ADMISSION_POLICIES",
    "VALIDATING_ADMISSION_POLICY_BINDINGS",
    "VALIDATING_WEBHOOK_CONFIGURATIONS",
    "Resource",
]

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of namespaces, and parts of others (RFC 1123)."""

DNS_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Names of most objects."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API serves it: `Resource("apps/v1", "Deployment", "deployments", namespaced=True)`."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    @override
    def __str__(self) -> str:
        return self.kind

    @property
    def name(self) -> str:
        """The name of the kind, such as `apps/v1/Deployment`."""
        return f"{self.api_version}/{self.kind}"

    def require_namespace(self, namespace: str | None, *, name: str | None) -> None:
        """Raise ProviderError if a cluster-scoped kind gets a namespace, or a namespaced object has none."""
        if namespace is not None and not self.namespaced:
            raise ProviderError(f"{self.kind} is cluster-scoped: it cannot be asked for in namespace {namespace!r}")
        if self.namespaced and name is not None and namespace is None:
            raise ProviderError(f"{self.kind} {name!r} is namespaced: a namespace is needed")

    def path(self, name: str | None = None, *, namespace: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection, of an object, or of its subresource.

        For a namespaced kind without namespace, the path is that of all namespaces. Raises ProviderError for names that
        cannot be a path segment: an empty name would turn a call for an object into a call for the collection.
        """
        self.require_namespace(namespace, name=name)
        parts = ["/api" if "/" not in self.api_version else "/apis", self.api_version]
        if namespace is not None:
            parts += ["namespaces", _segment(namespace, what="namespace")]
        parts.append(self.plural)
        if name is not None:
            parts.append(_segment(name, what=f"name of a {self.kind}"))
        if subresource is not None:
            parts.append(_segment(subresource, what="subresource"))
        return "/".join(parts)


_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""Pattern of names that need no escaping in a path: nearly all names."""


def _segment(value: str, *, what: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    if not value or value in {".", ".."} or "/" in value or "%" in value:
        raise ProviderError(
            f"{value!r} cannot be the {what}: it is empty or has characters that a URL path gives a meaning"
        )
    return quote(value, safe="")


NAMESPACES: Final = Resource("v1", "Namespace", "namespaces", namespaced=False)
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
SECRETS: Final = Resource("v1", "Secret", "secrets", namespaced=True)
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps", namespaced=True)
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts", namespaced=True)
SERVICES: Final = Resource("v1", "Service", "services", namespaced=True)
PODS: Final = Resource("v1", "Pod", "pods", namespaced=True)
EVENTS: Final = Resource("v1", "Event", "events", namespaced=True)
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments", namespaced=True)
STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets", namespaced=True)
PERSISTENT_VOLUME_CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", namespaced=True)
POD_DISRUPTION_BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
REPLICA_SETS: Final = Resource("apps/v1", "ReplicaSet", "replicasets", namespaced=True)
ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles", namespaced=True)
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", namespaced=True)
CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS: Final = Resource(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases", namespaced=True)
VALIDATING_WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies", namespaced=False
)
VALIDATING_ADMISSION_POLICIES: Final = Resource(
    "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
VALIDATING_ADMISSION_POLICY_BINDINGS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
