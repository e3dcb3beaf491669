"""What the operator keeps inside each control plane."""

from controlplane_operator.bootstrap.join import ClusterFacts, join_objects
from controlplane_operator.bootstrap.join_token import (
    JoinToken,
    current_tokens,
    detached_signature,
    new_token,
    read_token,
    token_secret,
)
from controlplane_operator.bootstrap.revocation import revoke, revoke_as_controllers
from controlplane_operator.bootstrap.tenant import (
    ADMIN_ACCOUNT,
    CONTROLLERS_ACCOUNT,
    JOIN_ADDON,
    TENANT_NAMESPACE,
    Subject,
    bootstrap,
)
from controlplane_operator.bootstrap.token import Token, request_token

__all__ = [
    "ADMIN_ACCOUNT",
    "CONTROLLERS_ACCOUNT",
    "JOIN_ADDON",
    "TENANT_NAMESPACE",
    "ClusterFacts",
    "JoinToken",
    "Subject",
    "Token",
    "bootstrap",
    "current_tokens",
    "detached_signature",
    "join_objects",
    "new_token",
    "read_token",
    "request_token",
    "revoke",
    "revoke_as_controllers",
    "token_secret",
]
