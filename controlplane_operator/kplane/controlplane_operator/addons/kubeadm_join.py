"""What `kubeadm join` needs in a control plane.

Names, groups and rules are those of kubeadm's phases bootstrap-token, upload-config and kubelet-config (Kubernetes
1.36, cmd/kubeadm/app/phases).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import yaml

from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.pki.authorities import KUBELET_CLIENT_USER

__all__ = [
    "ClusterFacts",
    "JoinToken",
    "current_tokens",
    "detached_signature",
    "discovery_kubeconfig",
    "join_objects",
    "new_token",
    "read_token",
    "token_secret",
]

_LIFETIME: Final = dt.timedelta(hours=24)
"""As long as those of `kubeadm init`."""
_RENEWED_BEFORE: Final = dt.timedelta(hours=8)
_CLOCKS: Final = dt.timedelta(minutes=5)
_GROUPS: Final = "system:bootstrappers:kubeadm:default-node-token"
_NAMESPACE: Final = "kube-system"
_PREFIX: Final = "bootstrap-token-"
_TYPE: Final = "bootstrap.kubernetes.io/token"
_ALPHABET: Final = string.ascii_lowercase + string.digits
_ID: Final = re.compile(r"[a-z0-9]{6}")
_SECRET: Final = re.compile(r"[a-z0-9]{16}")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A bootstrap token and when it ends."""

    id: str
    secret: str = field(repr=False)
    expires_at: dt.datetime

    @property
    def renew_at(self) -> dt.datetime:
        """When another one is to be there beside it."""
        return self.expires_at - _RENEWED_BEFORE


def new_token(*, now: dt.datetime) -> JoinToken:
    """Make a token: 31 bits of name, 82 bits of secret, of the operating system's random source."""
    name, secret = ("".join(secrets.choice(_ALPHABET) for _ in range(length)) for length in (6, 16))
    return JoinToken(name, secret, (now + _LIFETIME).replace(microsecond=0))


def current_tokens(found: Iterable[JoinToken], *, now: dt.datetime) -> list[JoinToken]:
    """Return the tokens that are to be there, the one that lives longest first: it is not yet to be renewed.

    Older ones stay until their end, because somebody may have been told them a moment ago. One whose end is further off
    than we ever set it was edited, and goes.
    """
    alive = [token for token in found if now < token.expires_at <= now + _LIFETIME + _CLOCKS]
    alive.sort(key=lambda token: (token.expires_at, token.id), reverse=True)
    return alive if alive and now < alive[0].renew_at else [new_token(now=now), *alive]


def read_token(secret: dict[str, Any]) -> JoinToken | None:
    """Return the token in a Secret; None where it is none that a node could join with."""
    if secret.get("type") != _TYPE or not isinstance(secret.get("data"), dict):
        return None
    try:
        data = {name: base64.b64decode(value, validate=True).decode() for name, value in secret["data"].items()}
        expires_at = dt.datetime.fromisoformat(data["expiration"])
        token = JoinToken(data["token-id"], data["token-secret"], expires_at)
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
    if not _ID.fullmatch(token.id) or not _SECRET.fullmatch(token.secret) or expires_at.tzinfo is None:
        return None
    return token if secret["metadata"].get("name") == f"{_PREFIX}{token.id}" else None


def token_secret(token: JoinToken) -> dict[str, Any]:
    """Describe the Secret that has the API server accept the token."""
    data = {
        "auth-extra-groups": _GROUPS,
        "description": "For nodes that join this control plane; replaced before it expires.",
        "expiration": token.expires_at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "token-id": token.id,
        "token-secret": token.secret,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{_PREFIX}{token.id}", "namespace": _NAMESPACE},
        "type": _TYPE,
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
    }


def detached_signature(content: str, *, token: JoinToken) -> str:
    """Sign `content` with a token, as the bootstrap signer of kube-controller-manager does, byte for byte.

    A JWS with HS256 whose payload is left out (RFC 7515, appendix F; k8s.io/cluster-bootstrap/token/jws). We do it
    ourselves because that controller runs only where somebody registered for it.
    """
    header = _url_safe(orjson.dumps({"alg": "HS256", "kid": token.id}))
    signed = f"{header}.{_url_safe(content.encode())}".encode()
    return f"{header}..{_url_safe(hmac.digest(token.secret.encode(), signed, hashlib.sha256))}"


def _url_safe(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


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
    """What nodes are told of a control plane. Service range and DNS address are None where others decide them."""

    name: str
    join_url: str
    ca: bytes | None
    version: str
    service_range: str | None
    dns_address: str | None


def join_objects(facts: ClusterFacts, *, tokens: Sequence[JoinToken]) -> list[dict[str, Any]]:
    """Describe everything, with the Secrets of `tokens`; equal arguments give equal objects.

    Raises BootstrapFailed where a node could not join with what is known.
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


def discovery_kubeconfig(server: str, *, ca: bytes) -> dict[str, Any]:
    """Return the kubeconfig by which kubeadm finds a control plane: one cluster without a name, and no credentials.

    `ca` is PEM.
    """
    cluster = {"certificate-authority-data": base64.b64encode(ca).decode(), "server": server}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": [],
        "current-context": "",
        "users": [],
    }


def _cluster_info(join_url: str, *, ca: bytes, tokens: Sequence[JoinToken]) -> list[dict[str, Any]]:
    kubeconfig = _yaml(discovery_kubeconfig(join_url, ca=ca))
    signatures = {f"jws-kubeconfig-{token.id}": detached_signature(kubeconfig, token=token) for token in tokens}
    name = "kubeadm:bootstrap-signer-clusterinfo"
    return [
        _config_map("cluster-info", namespace=_PUBLIC, data={"kubeconfig": kubeconfig, **signatures}),
        _role(name, namespace=_PUBLIC, config_map="cluster-info"),
        # Nodes that join have a token, and use it only once they trust what they read here.
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
    # For exec and logs: kubelets ask the API server whether it may. One that kplane does not run has another identity.
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
