"""Kubernetes objects of a component."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kplane.workloads.component import Component, Lifetime, Reach, RestartPolicy, Storage
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.pods.settings import Image, Placement, PodSettings
from kplane.workloads.pods.template import DATA_VOLUME, placed_content, pod_spec, topology_spread

__all__ = [
    "COMPONENT_LABEL",
    "MANAGED",
    "PULL_SECRETS",
    "Object",
    "check_supported",
    "claim_name",
    "component_of",
    "disruption_budget",
    "files_secret",
    "files_secret_name",
    "hold_scheduling",
    "is_stateful",
    "labels_of",
    "metadata_of",
    "network_policy",
    "pull_secret",
    "selector_of",
    "workload",
]

Object = dict[str, Any]

COMPONENT_LABEL: Final = "controlplane.kplane.dev/component"
"""Label of every object of a component, with the component's name in the runtime."""

_MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
_MANAGER: Final = "kplane"
_ROLE_LABEL: Final = "app.kubernetes.io/component"
MANAGED: Final = f"{_MANAGED_BY_LABEL}={_MANAGER},{COMPONENT_LABEL}"
"""Label selector of all objects of components."""

_FILES_ANNOTATION: Final = "controlplane.kplane.dev/files"
"""Annotation of a pod: digest of the files that its program reads only once.

A change of the digest replaces the pod.
"""
_NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
_PULL_SECRET_LABEL: Final = "controlplane.kplane.dev/pull-secret"  # noqa: S105 - the name of a label
"""Label of a copy of a Secret for pulling images, in the namespace of components."""
PULL_SECRETS: Final = f"{_MANAGED_BY_LABEL}={_MANAGER},{_PULL_SECRET_LABEL}"
"""Label selector of the copies of Secrets for pulling images."""

_DNS_PORT: Final = 53
_ANY_ADDRESS: Final[Sequence[Object]] = (
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
)
"""All addresses except link-local addresses, at which clouds serve their metadata."""
_REVISIONS: Final = 2
_SCHEDULING_FIELDS: Final = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "topologySpreadConstraints",
)
"""Fields of a pod that `Component.scheduling` sets."""


def labels_of(name: str, *, placement: Placement) -> dict[str, str]:
    """Return the labels of every object of a component."""
    return {_MANAGED_BY_LABEL: _MANAGER, _ROLE_LABEL: placement.role, COMPONENT_LABEL: name}


def selector_of(name: str) -> str:
    """Return the label selector of the objects of a component."""
    return f"{_MANAGED_BY_LABEL}={_MANAGER},{COMPONENT_LABEL}={name}"


def component_of(obj: Object) -> str | None:
    """Return the name of the component that an object belongs to by its label; None without the label."""
    name: str | None = (obj["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
    return name


def files_secret_name(placement: Placement) -> str:
    """Return the name of the Secret with the files of a component."""
    return f"{placement.name}-files"


def claim_name(placement: Placement) -> str:
    """Return the name of the PersistentVolumeClaim that the StatefulSet of a component creates for its only pod."""
    return f"{DATA_VOLUME}-{placement.name}-0"


def check_supported(component: Component) -> None:
    """Raise RuntimeFailure if a description requires features that pods do not have."""
    if component.lifetime is Lifetime.BOUND:
        raise RuntimeFailure(f"Component {component.name}: pods outlive their operator; lifetime must be Independent.")
    if component.restart is RestartPolicy.NEVER:
        raise RuntimeFailure(f"Component {component.name}: pods are started again; restart must be Always.")


def files_secret(component: Component, *, placement: Placement) -> Object:
    """Describe the Secret with the component's files."""
    metadata = metadata_of(component.name, placement=placement)
    return {
        "metadata": {**metadata, "name": files_secret_name(placement)},
        "type": "Opaque",
        "data": {name: base64.b64encode(placed_content(file)).decode() for name, file in component.files.items()},
    }


def pull_secret(source: Object, *, namespace: str) -> Object:
    """Describe the copy of a Secret for pulling images."""
    labels = {_MANAGED_BY_LABEL: _MANAGER, _PULL_SECRET_LABEL: ""}
    metadata = {"name": source["metadata"]["name"], "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "type": source.get("type", "Opaque"), "data": source.get("data") or {}}


def is_stateful(component: Component) -> bool:
    """Return whether a component is a StatefulSet, which starts a pod only after the former pod has ended."""
    return component.data or component.single


def workload(component: Component, *, placement: Placement, image: Image, settings: PodSettings) -> Object:
    """Describe the workload: a StatefulSet if the component keeps data or is single, else a Deployment."""
    labels = labels_of(component.name, placement=placement)
    template = {
        # Pods are replaced when a file changes that the program does not read again by itself.
        "metadata": {"labels": labels, "annotations": {_FILES_ANNOTATION: _digest(component)}},
        "spec": pod_spec(component, image=image, settings=settings, files_secret=files_secret_name(placement)),
    }
    common = {
        "selector": {"matchLabels": labels},
        "template": template,
        "revisionHistoryLimit": _REVISIONS,
    }
    metadata = metadata_of(component.name, placement=placement)
    if is_stateful(component):
        claims = [_claim(labels, storage=component.storage, settings=settings)] if component.data else []
        if placement.group is not None:
            labels_of_group = _group_labels(placement)
            template["spec"]["topologySpreadConstraints"] = topology_spread(component, labels=labels_of_group)
        return {
            "metadata": metadata,
            "spec": {
                **common,
                "replicas": 1,
                "serviceName": placement.name,
                "podManagementPolicy": "Parallel",
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                **({"volumeClaimTemplates": claims} if claims else {}),
            },
        }
    template["spec"]["topologySpreadConstraints"] = topology_spread(component, labels=labels)
    return {
        "metadata": metadata,
        "spec": {
            **common,
            "replicas": settings.replicas,
            # The next pod becomes ready before the former pod is ended.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        },
    }


def hold_scheduling(described: Object, *, live: Object) -> bool:
    """Replace the scheduling of a described workload with the live scheduling; returns whether they differed."""
    pod, present = described["spec"]["template"]["spec"], live["spec"]["template"]["spec"]
    differing = [name for name in _SCHEDULING_FIELDS if pod.get(name) != present.get(name)]
    for name in differing:
        if name in present:
            pod[name] = present[name]
        else:
            del pod[name]
    return bool(differing)


def disruption_budget(component: Component, *, placement: Placement) -> Object | None:
    """Describe the PodDisruptionBudget: at most a single pod is unavailable. A single pod never blocks a drain.

    The first component of a group has the budget of the whole group; other components have none. A pod with two budgets
    could not be evicted at all.
    """
    if placement.group not in {None, placement.name}:
        return None
    labels = labels_of(component.name, placement=placement) if placement.group is None else _group_labels(placement)
    return {
        "metadata": metadata_of(component.name, placement=placement),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }


def network_policy(component: Component, *, placement: Placement, settings: PodSettings) -> Object:
    """Describe the NetworkPolicy: ingress from the component's clients, egress to the component's destinations."""
    return {
        "metadata": metadata_of(component.name, placement=placement),
        "spec": {
            "podSelector": {"matchLabels": labels_of(component.name, placement=placement)},
            "policyTypes": ["Ingress"] if component.reaches is None else ["Ingress", "Egress"],
            "ingress": _incoming(component, settings=settings),
            **_outgoing(component.reaches, settings=settings),
        },
    }


def _group_labels(placement: Placement) -> dict[str, str]:
    return {_MANAGED_BY_LABEL: _MANAGER, _ROLE_LABEL: placement.role}


def _incoming(component: Component, *, settings: PodSettings) -> list[Object]:
    clients: list[Object] | None = None
    if component.reached_by is not None:
        clients = _components(component.reached_by)
        if component.operated and settings.operator is not None:
            clients.append(dict(settings.operator))
    readers = None if settings.metrics_from is None else [dict(peer) for peer in settings.metrics_from]
    rules: list[Object] = []
    for port in component.ports:
        if port.name == component.metrics_port:
            rules += _ingress_rule(port.number, peers=readers)
        elif port.name == component.peer_port:
            rules += _ingress_rule(port.number, peers=_components(component.peers))
        else:
            rules += _ingress_rule(port.number, peers=clients)
    return rules


def _components(names: Sequence[str]) -> list[Object]:
    """Return the pods of these components, as peers."""
    if not names:
        return []
    return [{"podSelector": {"matchExpressions": [{"key": COMPONENT_LABEL, "operator": "In", "values": list(names)}]}}]


def _ingress_rule(port: int, *, peers: list[Object] | None) -> list[Object]:
    """Return the rule that admits these peers, or any client if `peers` is None."""
    # A rule with an empty list of peers would admit any client.
    if peers == []:
        return []
    rule: Object = {"ports": [{"protocol": "TCP", "port": port}]}
    return [rule if peers is None else {**rule, "from": peers}]


def _outgoing(reaches: Sequence[Reach] | None, *, settings: PodSettings) -> Object:
    if reaches is None:
        return {}
    if not reaches:
        return {"egress": []}
    dns: Object = {
        "ports": [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")],
        "to": [dict(peer) for peer in settings.dns],
    }
    return {"egress": [dns, *(_towards(reach) for reach in reaches)]}


def _towards(reach: Reach) -> Object:
    rule: Object = {"ports": [{"protocol": "TCP", "port": reach.port}]}
    if reach.component is not None:
        rule["to"] = [{"podSelector": {"matchLabels": {COMPONENT_LABEL: reach.component}}}]
    elif reach.namespace is not None:
        rule["to"] = [{"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: reach.namespace}}}]
    elif reach.network is not None:
        rule["to"] = [{"ipBlock": {"cidr": reach.network}}]
    else:
        # Some network plugins do not apply an IP block to pods.
        rule["to"] = [{"namespaceSelector": {}}, *_ANY_ADDRESS]
    return rule


def metadata_of(name: str, *, placement: Placement) -> Object:
    """Return the metadata of an object that has the same name as the workload of its component."""
    return {
        "name": placement.name,
        "namespace": placement.namespace,
        "labels": labels_of(name, placement=placement),
    }


def _claim(labels: Mapping[str, str], *, storage: Storage, settings: PodSettings) -> Object:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size or settings.storage_size}},
    }
    if (storage_class := storage.storage_class or settings.storage_class) is not None:
        spec["storageClassName"] = storage_class
    return {"metadata": {"name": DATA_VOLUME, "labels": dict(labels)}, "spec": spec}


def _digest(component: Component) -> str:
    fixed = {
        name: hashlib.sha256(file.content).hexdigest() for name, file in component.files.items() if not file.reloaded
    }
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:32]
