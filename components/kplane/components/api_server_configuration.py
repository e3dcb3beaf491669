"""The configuration files of a kube-apiserver: who may log in, what is audited, what is encrypted."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import yaml

from kplane.api import AuditPolicy, OidcIssuer
from kplane.components.canonical import canonical_lists

__all__ = ["audit_configuration", "authentication_configuration", "encryption_configuration"]

_ANONYMOUS_PATHS: Final = (
    "/livez",
    "/readyz",
    "/healthz",
    # What `kubeadm join` reads before it trusts the server. RBAC lets it only where add-on kubeadm-join is installed.
    "/api/v1/namespaces/kube-public/configmaps/cluster-info",
)
_EVERYTHING: Final = "*.*"


def authentication_configuration(issuers: Sequence[OidcIssuer]) -> bytes:
    """Take tokens of these issuers, and anonymous requests only for health and for what joining nodes start from.

    The form is KEP-3331's: https://kubernetes.io/docs/reference/access-authn-authz/authentication/.
    """
    return _written(
        "apiserver.config.k8s.io/v1",
        "AuthenticationConfiguration",
        {
            "anonymous": {"enabled": True, "conditions": [{"path": path} for path in _ANONYMOUS_PATHS]},
            **({"jwt": [_authenticator(issuer) for issuer in issuers]} if issuers else {}),
        },
    )


def _authenticator(issuer: OidcIssuer) -> dict[str, Any]:
    authority = issuer.certificate_authority
    mappings = {"username": {"claim": issuer.username_claim, "prefix": issuer.username_prefix}}
    if issuer.groups_claim is not None:
        mappings["groups"] = {"claim": issuer.groups_claim, "prefix": issuer.groups_prefix}
    required = sorted(issuer.required_claims.items())
    return {
        "issuer": {
            "url": issuer.issuer_url,
            **({"certificateAuthority": authority} if authority is not None else {}),
            "audiences": list(issuer.client_ids),
            "audienceMatchPolicy": "MatchAny",
            # Its keys are read through the proxy, because nothing else leads out of the API server's pod.
            "egressSelectorType": "controlplane",
        },
        "claimMappings": mappings,
        "claimValidationRules": [{"claim": claim, "requiredValue": value} for claim, value in required],
    }


def audit_configuration(policy: AuditPolicy) -> bytes:
    """Write the policy in the form of audit.k8s.io/v1. Of its lists, only the order of rules counts."""
    content = policy.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _written("audit.k8s.io/v1", "Policy", canonical_lists(content, ordered=("rules",)))


def encryption_configuration(resources: Sequence[str], *, key: bytes) -> bytes:
    """Encrypt the objects of these resources, and read those of any resource whether they are encrypted or not.

    So no API server is ever asked for what it cannot read yet, whichever of them is told first.
    """
    encrypted = {"secretbox": {"keys": [{"name": "kplane", "secret": base64.b64encode(key).decode()}]}}
    plain: dict[str, Any] = {"identity": {}}
    chosen = [{"resources": sorted(set(resources)), "providers": [encrypted, plain]}] if resources else []
    rest = {"resources": [_EVERYTHING], "providers": [plain, encrypted]}
    return _written("apiserver.config.k8s.io/v1", "EncryptionConfiguration", {"resources": [*chosen, rest]})


def _written(api_version: str, kind: str, content: dict[str, Any]) -> bytes:
    return yaml.safe_dump({"apiVersion": api_version, "kind": kind, **content}, sort_keys=False).encode()
