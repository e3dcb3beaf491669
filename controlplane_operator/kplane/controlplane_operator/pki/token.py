"""ServiceAccount tokens: which key signed one."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kplane.controlplane_operator.pki.primitives import public_key

__all__ = ["signed_by"]

_COORDINATE_BYTES: Final = 32
"""Of a P-256 signature; ES256 puts the two one after the other (RFC 7518, 3.4)."""


def signed_by(token: str, *, key: bytes) -> bool:
    """Tell whether a private key (PEM) of ours signed a token. Raises CredentialsInvalid where the key is none.

    It says nothing of whether the token is good otherwise: that is up to the API server.
    """
    verifier = load_pem_public_key(public_key(key))
    signed, _, encoded = token.rpartition(".")
    try:
        signature = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        return False
    if len(signature) != 2 * _COORDINATE_BYTES or not isinstance(verifier, ec.EllipticCurvePublicKey):
        return False
    r, s = (int.from_bytes(part) for part in (signature[:_COORDINATE_BYTES], signature[_COORDINATE_BYTES:]))
    try:
        verifier.verify(utils.encode_dss_signature(r, s), signed.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
