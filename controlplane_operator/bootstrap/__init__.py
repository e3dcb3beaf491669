"""What the operator keeps inside each control plane."""

from controlplane_operator.bootstrap.tenant import (
    ADMIN_ACCOUNT,
    CONTROLLERS_ACCOUNT,
    TENANT_NAMESPACE,
    Subject,
    bootstrap,
    revoke,
)
from controlplane_operator.bootstrap.token import Token, request_token

__all__ = [
    "ADMIN_ACCOUNT",
    "CONTROLLERS_ACCOUNT",
    "TENANT_NAMESPACE",
    "Subject",
    "Token",
    "bootstrap",
    "request_token",
    "revoke",
]
