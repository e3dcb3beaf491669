"""The kinds that a ledger writes: the fields of each object beside metadata, and rules for updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from kplane.provider.client.resources import Resource

__all__ = ["CRD", "CRDS", "KINDS", "WIDGETS", "Kind"]

CRDS: Final = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False)
WIDGETS: Final = Resource("ledger.example.com/v1", "Widget", "widgets", namespaced=True)
CRD: Final[dict[str, Any]] = {
    "metadata": {"name": "widgets.ledger.example.com"},
    "spec": {
        "group": "ledger.example.com",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, in a single namespace if the kind is namespaced."""

    resource: Resource
    namespace: str | None
    body: dict[str, Any] = field(default_factory=dict)
    unconditional: bool = True
    """A PUT needs no resourceVersion."""

    @property
    def path(self) -> str:
        return self.resource.path(namespace=self.namespace)


_CONDITIONAL: Final = {"CSIDriver", "Lease", "PodDisruptionBudget", "RuntimeClass", "Widget"}


def _kind(version: str, kind: str, plural: str, namespace: str | None = "default", /, **body: Any) -> Kind:
    resource = Resource(version, kind, plural, namespaced=namespace is not None)
    return Kind(resource, namespace, body, unconditional=kind not in _CONDITIONAL)


_RBAC: Final = "rbac.authorization.k8s.io/v1"
_ROLE_RULES: Final = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
_TEMPLATE: Final = {
    "metadata": {"labels": {"app": "ledger"}},
    "spec": {"containers": [{"name": "main", "image": "example"}]},
}
_SELECTOR: Final = {"matchLabels": {"app": "ledger"}}
_OBJECT_REFERENCE: Final = {"apiVersion": "v1", "kind": "ConfigMap", "name": "ledger", "namespace": "default"}

KINDS: Final = (
    _kind("v1", "ConfigMap", "configmaps", data={"text": "a" * 500}),
    _kind("v1", "ConfigMap", "configmaps", "kube-system", data={"text": "b"}),
    _kind("v1", "Secret", "secrets", stringData={"password": "secret"}),
    _kind("v1", "Secret", "secrets", "kube-system", stringData={"password": "secret"}),
    _kind("v1", "ServiceAccount", "serviceaccounts"),
    _kind("v1", "Service", "services", spec={"ports": [{"port": 80}]}),
    _kind("v1", "PodTemplate", "podtemplates", template=_TEMPLATE),
    _kind("v1", "LimitRange", "limitranges", spec={"limits": []}),
    _kind("v1", "ResourceQuota", "resourcequotas", "kube-public", spec={"hard": {"pods": "1000"}}),
    _kind("v1", "Event", "events", involvedObject=_OBJECT_REFERENCE, reason="Ledger", message="m"),
    _kind("v1", "Event", "events", "kube-system", involvedObject={**_OBJECT_REFERENCE, "namespace": "kube-system"}),
    _kind("coordination.k8s.io/v1", "Lease", "leases", spec={"holderIdentity": "ledger"}),
    _kind("coordination.k8s.io/v1", "Lease", "leases", "kube-system", spec={"holderIdentity": "ledger"}),
    _kind(WIDGETS.api_version, WIDGETS.kind, WIDGETS.plural, spec={"size": 3}),
    _kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", addressType="IPv4", endpoints=[]),
    _kind(
        "apps/v1",
        "Deployment",
        "deployments",
        spec={"replicas": 0, "paused": True, "selector": _SELECTOR, "template": _TEMPLATE},
    ),
    _kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", spec={"podSelector": {}}),
    _kind(
        "networking.k8s.io/v1",
        "Ingress",
        "ingresses",
        spec={"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}},
    ),
    _kind("networking.k8s.io/v1", "IngressClass", "ingressclasses", None, spec={"controller": "example.com/ledger"}),
    _kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", spec={"minAvailable": 1, "selector": _SELECTOR}),
    _kind(_RBAC, "Role", "roles", rules=_ROLE_RULES),
    _kind(_RBAC, "Role", "roles", "kube-system", rules=_ROLE_RULES),
    _kind(
        _RBAC,
        "RoleBinding",
        "rolebindings",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ledger"},
        subjects=[{"kind": "ServiceAccount", "name": "ledger", "namespace": "default"}],
    ),
    _kind(_RBAC, "ClusterRole", "clusterroles", None, rules=_ROLE_RULES),
    _kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", None, value=7),
    _kind("storage.k8s.io/v1", "StorageClass", "storageclasses", None, provisioner="example.com/ledger"),
    _kind("storage.k8s.io/v1", "CSIDriver", "csidrivers", None, spec={"attachRequired": False}),
    _kind("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", None, handler="ledger"),
)
"""Some kinds appear twice, in two namespaces."""
