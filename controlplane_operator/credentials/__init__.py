"""Keys, certificates and kubeconfigs of control planes."""

from controlplane_operator.credentials.generations import Generations
from controlplane_operator.credentials.kubeconfig import render_kubeconfig
from controlplane_operator.credentials.pki import (
    KeyPair,
    create_authority,
    create_signing_key,
    expiry,
    issue_client,
    issue_serving,
    issued_by,
    public_key,
    renewal_due,
    renewal_time,
    user_of,
)
from controlplane_operator.credentials.rotation import Rotation, RotationWish, begun_with, next_rotation
from controlplane_operator.credentials.tenant import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from controlplane_operator.credentials.token import signed_by

__all__ = [
    "CONTROLLERS_USER",
    "Generations",
    "KeyPair",
    "Rotation",
    "RotationWish",
    "TenantAuthorities",
    "TenantCertificates",
    "begun_with",
    "create_authority",
    "create_signing_key",
    "expiry",
    "issue_client",
    "issue_serving",
    "issued_by",
    "next_rotation",
    "public_key",
    "render_kubeconfig",
    "renewal_due",
    "renewal_time",
    "signed_by",
    "user_of",
]
