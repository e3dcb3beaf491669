"""Bootstrap tokens, which nodes use to join a control plane.

Names and groups are those of kubeadm's phase bootstrap-token (Kubernetes 1.36, cmd/kubeadm/app/phases).
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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

__all__ = ["JoinToken", "current_tokens", "detached_signature", "new_token", "read_token", "token_secret"]

_LIFETIME: Final = dt.timedelta(hours=24)
"""Lifetime of a token, as of the tokens of `kubeadm init`."""
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
    """A bootstrap token with its expiry."""

    id: str
    secret: str = field(repr=False)
    expires_at: dt.datetime

    @property
    def renew_at(self) -> dt.datetime:
        """Time at which a new token must exist beside this token."""
        return self.expires_at - _RENEWED_BEFORE


def new_token(*, now: dt.datetime) -> JoinToken:
    """Create a token from the operating system's random source: 31 bits of id, and 82 bits of secret."""
    name, secret = ("".join(secrets.choice(_ALPHABET) for _ in range(length)) for length in (6, 16))
    return JoinToken(name, secret, (now + _LIFETIME).replace(microsecond=0))


def current_tokens(found: Iterable[JoinToken], *, now: dt.datetime) -> list[JoinToken]:
    """Return the tokens to keep. The first has the latest expiry, and needs no renewal yet.

    The list begins with a new token if each existing token needs renewal. Older tokens stay until their expiry, because
    a user may have just read them. A token with an expiry beyond kplane's lifetime was edited, and is omitted.
    """
    alive = [token for token in found if now < token.expires_at <= now + _LIFETIME + _CLOCKS]
    alive.sort(key=lambda token: (token.expires_at, token.id), reverse=True)
    return alive if alive and now < alive[0].renew_at else [new_token(now=now), *alive]


def read_token(secret: dict[str, Any]) -> JoinToken | None:
    """Return the token in a Secret; None if a node cannot join with the Secret."""
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
    """Return the Secret by which an API server accepts the token."""
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
    """Sign `content` with a token, byte for byte as the bootstrap signer of kube-controller-manager does.

    The signature is a JWS with HS256 and detached payload (RFC 7515, appendix F; k8s.io/cluster-bootstrap/token/jws).
    kplane signs itself, because kube-controller-manager runs only for control planes with a registration for it.
    """
    header = _url_safe(orjson.dumps({"alg": "HS256", "kid": token.id}))
    signed = f"{header}.{_url_safe(content.encode())}".encode()
    return f"{header}..{_url_safe(hmac.digest(token.secret.encode(), signed, hashlib.sha256))}"


def _url_safe(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
