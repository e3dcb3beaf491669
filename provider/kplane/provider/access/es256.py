"""Signs and verifies JSON Web Tokens by ES256 (RFC 7518, 3.4), as API servers do for ServiceAccounts."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

__all__ = ["decoded", "encoded", "is_signed_by", "signed"]

_COORDINATE_BYTES: Final = 32
"""Size of each of the two coordinates in a P-256 signature."""


def encoded(content: bytes) -> str:
    """Return a part of a token: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decoded(part: str) -> bytes | None:
    """Return the content of a part of a token; None if it is no base64."""
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        return None


def signed(header: bytes, claims: bytes, *, key: ec.EllipticCurvePrivateKey) -> str:
    """Return a token of header and claims, both JSON."""
    content = f"{encoded(header)}.{encoded(claims)}"
    r, s = utils.decode_dss_signature(key.sign(content.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{content}.{encoded(r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES))}"


def is_signed_by(token: str, *, key: ec.EllipticCurvePublicKey) -> bool:
    """Tell whether the private key of `key` signed a token. `token` may be any text."""
    content, _, part = token.rpartition(".")
    signature = decoded(part)
    if not content.isascii() or signature is None or len(signature) != 2 * _COORDINATE_BYTES:
        return False
    r, s = (int.from_bytes(half) for half in (signature[:_COORDINATE_BYTES], signature[_COORDINATE_BYTES:]))
    try:
        key.verify(utils.encode_dss_signature(r, s), content.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
