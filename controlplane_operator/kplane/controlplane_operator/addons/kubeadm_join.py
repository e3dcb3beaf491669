"""Objects that `kubeadm join` needs in a control plane.

Names, groups and rules are those of kubeadm's phases bootstrap-token, upload-config and kubelet-config (Kubernetes
1.36, cmd/kubeadm/app/phases).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.pki.authorities import KUBELET_CLIENT_USER
from kplane.pki.bootstrap_tokens import JoinToken, detached_signature, token_secret
from kplane.pki.kubeconfig import discovery_kubeconfig

__all__ = [
    "ClusterFacts",
    "join_objects",
]

_SYSTEM: Final = "kube-system"
_PUBLIC: Final = "kube-public"
_BOOTSTRAPPERS: Final = "system:bootstrappers:kubeadm:default-node-token"
_NODES: Final = "system:nodes"
_ANONYMOUS: Final = "system:anonymous"
_RBAC: Final = "rbac.authorization.k8s.io"
_VERSION: Final = re.compile(r"v\d+\.\d+\.\d+([-+][-+.0-9A-Za-z]*)?")
_DNS_DOMAIN: Final = "cluster.local"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Values of a control plane for its nodes.

    Service range and DNS address are None if kplane does not assign them.
    """

    name: str
    join_url: str
    ca: bytes | None
    version: str
    service_range: str | None
    dns_address: str | None


def join_objects(facts: ClusterFacts, *, tokens: Sequence[JoinToken]) -> list[dict[str, Any]]:
    """Return all objects, with the Secrets of `tokens`. Equal arguments give equal objects.

    Raises BootstrapFailed if the CA or the version is missing, without which a node cannot join.
    """
    if facts.ca is None:
        raise BootstrapFailed(
            "nodes need the control plane's CA, and the endpoint's kubeconfig names none; add"
            " certificate-authority-data to it"
        )
    if not _VERSION.fullmatch(facts.version):
        raise BootstrapFailed(f"nodes need the control plane's version, and {facts.version!r} is none")
    return [
        *_cluster_info(facts.join_url, ca=facts.ca, tokens=tokens),
        *_kubeadm_config(facts),
        *_kubelet_config(facts),
        *_node_rights(),
        *(_api_server_rights() if facts.service_range is not None else ()),
        *(token_secret(token) for token in tokens),
    ]


def _cluster_info(join_url: str, *, ca: bytes, tokens: Sequence[JoinToken]) -> list[dict[str, Any]]:
    kubeconfig = _yaml(discovery_kubeconfig(join_url, ca=ca))
    signatures = {f"jws-kubeconfig-{token.id}": detached_signature(kubeconfig, token=token) for token in tokens}
    name = "kubeadm:bootstrap-signer-clusterinfo"
    return [
        _config_map("cluster-info", namespace=_PUBLIC, data={"kubeconfig": kubeconfig, **signatures}),
        _role(name, namespace=_PUBLIC, config_map="cluster-info"),
        # Joining nodes read this anonymously. They send their token only after they have verified the signature.
        _binding(name, namespace=_PUBLIC, role=name, users=[_ANONYMOUS]),
    ]


def _kubeadm_config(facts: ClusterFacts) -> list[dict[str, Any]]:
    parts = urlsplit(facts.join_url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    networking = {"dnsDomain": _DNS_DOMAIN}
    if facts.service_range is not None:
        networking["serviceSubnet"] = facts.service_range
    configuration = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "clusterName": facts.name,
        "controlPlaneEndpoint": f"{host}:{parts.port or 443}",
        "kubernetesVersion": facts.version,
        "networking": networking,
    }
    name = "kubeadm:nodes-kubeadm-config"
    return [
        _config_map("kubeadm-config", namespace=_SYSTEM, data={"ClusterConfiguration": _yaml(configuration)}),
        _role(name, namespace=_SYSTEM, config_map="kubeadm-config"),
        _binding(name, namespace=_SYSTEM, role=name, groups=[_BOOTSTRAPPERS, _NODES]),
    ]


def _kubelet_config(facts: ClusterFacts) -> list[dict[str, Any]]:
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "systemd",
        "clusterDomain": _DNS_DOMAIN,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "rotateCertificates": True,
        "staticPodPath": "/etc/kubernetes/manifests",
    }
    if facts.dns_address is not None:
        configuration["clusterDNS"] = [facts.dns_address]
    name = "kubeadm:kubelet-config"
    return [
        _config_map("kubelet-config", namespace=_SYSTEM, data={"kubelet": _yaml(configuration)}),
        _role(name, namespace=_SYSTEM, config_map="kubelet-config"),
        _binding(name, namespace=_SYSTEM, role=name, groups=[_NODES, _BOOTSTRAPPERS]),
    ]


def _node_rights() -> list[dict[str, Any]]:
    approval = "system:certificates.k8s.io:certificatesigningrequests"
    get_nodes = "kubeadm:get-nodes"
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": get_nodes},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        },
        _binding(get_nodes, role=get_nodes, groups=[_BOOTSTRAPPERS]),
        _binding("kubeadm:kubelet-bootstrap", role="system:node-bootstrapper", groups=[_BOOTSTRAPPERS]),
        _binding("kubeadm:node-autoapprove-bootstrap", role=f"{approval}:nodeclient", groups=[_BOOTSTRAPPERS]),
        _binding("kubeadm:node-autoapprove-certificate-rotation", role=f"{approval}:selfnodeclient", groups=[_NODES]),
    ]


def _api_server_rights() -> list[dict[str, Any]]:
    # For exec and logs: kubelets ask the API server whether its own identity has the right. An API server that kplane
    # does not run has another identity.
    return [_binding("kplane:kube-apiserver", role="system:kubelet-api-admin", users=[KUBELET_CLIENT_USER])]


def _config_map(name: str, *, namespace: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _role(name: str, *, namespace: str, config_map: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [config_map], "verbs": ["get"]}],
    }


def _binding(
    name: str, *, role: str, namespace: str | None = None, groups: Sequence[str] = (), users: Sequence[str] = ()
) -> dict[str, Any]:
    kind, metadata = ("RoleBinding", {"namespace": namespace}) if namespace is not None else ("ClusterRoleBinding", {})
    subjects = [("Group", group) for group in groups] + [("User", user) for user in users]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "roleRef": {"apiGroup": _RBAC, "kind": kind.removesuffix("Binding"), "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": kind, "name": name} for kind, name in subjects],
    }


def _yaml(document: dict[str, Any]) -> str:
    return str(yaml.safe_dump(document, sort_keys=True))
