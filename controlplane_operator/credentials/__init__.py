"""Keys, certificates and kubeconfigs of control planes."""

from controlplane_operator.credentials.kubeconfig import render_kubeconfig
from controlplane_operator.credentials.pki import (
    KeyPair,
    create_authority,
    create_signing_key,
    expiry,
    issue_client,
    issue_serving,
    public_key,
    renewal_due,
    user_of,
)
from controlplane_operator.credentials.tenant import CONTROLLERS_USER, TenantAuthorities, TenantCertificates

__all__ = [
    "CONTROLLERS_USER",
    "KeyPair",
    "TenantAuthorities",
    "TenantCertificates",
    "create_authority",
    "create_signing_key",
    "expiry",
    "issue_client",
    "issue_serving",
    "public_key",
    "render_kubeconfig",
    "renewal_due",
    "user_of",
]
