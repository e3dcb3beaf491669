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

from kplane.controlplane_operator.watch.cache import Object

__all__ = ["BootstrapToken", "read_bootstrap_token", "tokens_entry"]

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


def _seconds(token: BootstrapToken) -> float:
    return token.expiration.timestamp() if token.expiration is not None else 0.0
