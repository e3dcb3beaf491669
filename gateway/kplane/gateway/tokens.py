"""What can be told of a bearer token without its API server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.provider.access.es256 import decoded, is_signed_by

__all__ = ["bearer_token", "is_worthless"]

_PARTS: Final = 3
_LEEWAY: Final = timedelta(minutes=2)
"""An API server allows for a minute after a token has ended, and its clock may be late."""
_IN_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."


def bearer_token(authorization: str, *, protocols: str = "") -> str | None:
    """Return the token of a request, as an API server finds it; None if there is none.

    `protocols` is the header Sec-WebSocket-Protocol, by which browsers send tokens.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.partition(" ")[0] or None
    for protocol in protocols.split(","):
        encoded = protocol.strip().removeprefix(_IN_PROTOCOL)
        if encoded and encoded != protocol.strip():
            return (decoded(encoded) or b"").decode(errors="replace") or None
    return None


def is_worthless(token: str, *, keys: Sequence[bytes], now: datetime) -> bool:
    """Tell whether the API server with these keys (PEM) will certainly refuse a token.

    That is so for a ServiceAccount token that none of the keys signed, and for one that has ended. Of all other tokens
    only the API server can tell.
    """
    parts = token.split(".")
    if len(parts) != _PARTS:
        return False
    claims = _claims(parts[1])
    if claims.get("iss") != SERVICE_ACCOUNT_ISSUER:
        return False
    ends = claims.get("exp")
    if isinstance(ends, (int, float)) and ends < (now - _LEEWAY).timestamp():
        return True
    known = [_verifier(key) for key in keys]
    if not known or None in known:
        return False
    return not any(is_signed_by(token, key=key) for key in known if key is not None)


def _claims(part: str) -> dict[str, Any]:
    try:
        found = orjson.loads(decoded(part) or b"")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=256)
def _verifier(key: bytes) -> ec.EllipticCurvePublicKey | None:
    """Return a key of the kind that the operator makes; None for another kind."""
    found = load_pem_public_key(key)
    if isinstance(found, ec.EllipticCurvePublicKey) and isinstance(found.curve, ec.SECP256R1):
        return found
    return None
