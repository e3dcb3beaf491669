"""Bootstrap tokens with which nodes wake a control plane. The gateway gets their hashes before the API server ends."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import GATEWAY_BOOTSTRAP_TOKENS_KEY, GATEWAY_HOST_KEY, gateway_secret_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["BootstrapToken", "read_bootstrap_token", "record_bootstrap_tokens", "tokens_entry"]

_TOKEN: Final = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
_MAX_TOKENS: Final = 200
"""Maximum number of tokens per control plane. If there are more, the gateway gets the longest-lived tokens."""
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A bootstrap token that the API server accepts."""

    text: str = field(repr=False)
    expiration: datetime | None = None
    """End of validity; None if the token never expires."""


def read_bootstrap_token(secret: Object, *, now: datetime) -> BootstrapToken | None:
    """Return the token in a Secret; None if the API server does not accept the token.

    The rules are those of kube-apiserver (plugin/pkg/auth/authenticator/token/bootstrap).
    """
    metadata, data = secret["metadata"], secret.get("data") or {}
    try:
        values = {key: base64.b64decode(value, validate=True).decode() for key, value in data.items()}
        expiration = datetime.fromisoformat(values["expiration"]) if values.get("expiration") else None
    except (TypeError, ValueError, binascii.Error):
        return None
    name, text = values.get("token-id"), f"{values.get('token-id')}.{values.get('token-secret')}"
    is_named = metadata.get("name") == f"bootstrap-token-{name}" and "deletionTimestamp" not in metadata
    if not is_named or values.get("usage-bootstrap-authentication") != "true" or not _TOKEN.fullmatch(text):
        return None
    if expiration is not None and (expiration.tzinfo is None or expiration <= now):
        return None
    return BootstrapToken(text, expiration)


def tokens_entry(tokens: Iterable[BootstrapToken]) -> bytes:
    """Return the gateway's entry for these tokens: a salt, and for each token its hash and expiry."""
    salt = secrets.token_bytes(_SALT_BYTES)
    lasting = sorted(tokens, key=lambda token: (token.expiration is not None, -_seconds(token), token.text))
    entries = []
    for token in lasting[:_MAX_TOKENS]:
        ends = {"expiration": token.expiration.isoformat()} if token.expiration is not None else {}
        entries.append({"hmac": hmac.digest(salt, token.text.encode(), "sha256").hex(), **ends})
    return json.dumps({"salt": salt.hex(), "tokens": entries}).encode()


async def record_bootstrap_tokens(
    context: OperatorContext, control_plane: ControlPlane, *, tokens: Iterable[BootstrapToken]
) -> None:
    """Write the bootstrap tokens that wake a control plane into its gateway Secret, if it is published by path.

    Raises ConditionError (SecretsNotReadable) while the operator may not read the gateway's namespace.
    """
    gateway = context.gateway
    if gateway is None:
        return
    await context.secrets.open(gateway.namespace)
    name = gateway_secret_name(control_plane.name)
    existing = context.stores.secrets.get((gateway.namespace, name))
    if existing is None or GATEWAY_HOST_KEY in (existing.get("data") or {}):
        # On a connection to a host name, the gateway sees no tokens.
        return
    entry = base64.b64encode(tokens_entry(tokens)).decode()
    try:
        body = {"data": {GATEWAY_BOOTSTRAP_TOKENS_KEY: entry}}
        await context.client.patch(SECRETS, name, body, namespace=gateway.namespace)
    except NotFound:
        # A later pass creates the Secret again. Until then, the gateway does not serve this control plane.
        return


def _seconds(token: BootstrapToken) -> float:
    return token.expiration.timestamp() if token.expiration is not None else 0.0
