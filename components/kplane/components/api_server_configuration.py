"""Configuration files of a kube-apiserver for authentication, audit and encryption at rest."""

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
    # `kubeadm join` reads this before it trusts the server. RBAC allows the read only with add-on kubeadm-join.
    "/api/v1/namespaces/kube-public/configmaps/cluster-info",
)
_EVERYTHING: Final = "*.*"


def authentication_configuration(issuers: Sequence[OidcIssuer]) -> bytes:
    """Return the authentication configuration: tokens of these issuers, and anonymous requests for a few paths.

    These paths are health checks, and the ConfigMap that joining nodes start with. The format is KEP-3331's:
    https://kubernetes.io/docs/reference/access-authn-authz/authentication/.
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
            # The issuer's keys are read through the proxy, the only way out of the API server's pod.
            "egressSelectorType": "controlplane",
        },
        "claimMappings": mappings,
        "claimValidationRules": [{"claim": claim, "requiredValue": value} for claim, value in required],
    }


def audit_configuration(policy: AuditPolicy) -> bytes:
    """Return the audit policy in the form of audit.k8s.io/v1. Lists other than `rules` are sorted as sets."""
    content = policy.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _written("audit.k8s.io/v1", "Policy", canonical_lists(content, ordered=("rules",)))


def encryption_configuration(resources: Sequence[str], *, key: bytes) -> bytes:
    """Return the configuration that encrypts these resources, and that reads both encrypted and plain objects.

    Every API server can therefore read every object, in whichever order API servers get a changed configuration.
    """
    encrypted = {"secretbox": {"keys": [{"name": "kplane", "secret": base64.b64encode(key).decode()}]}}
    plain: dict[str, Any] = {"identity": {}}
    selected = [{"resources": sorted(set(resources)), "providers": [encrypted, plain]}] if resources else []
    rest = {"resources": [_EVERYTHING], "providers": [plain, encrypted]}
    return _written("apiserver.config.k8s.io/v1", "EncryptionConfiguration", {"resources": [*selected, rest]})


def _written(api_version: str, kind: str, content: dict[str, Any]) -> bytes:
    return yaml.safe_dump({"apiVersion": api_version, "kind": kind, **content}, sort_keys=False).encode()
