"""Signatures of ServiceAccount tokens: made and checked by the key of a control plane."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from kplane.controlplane_operator.errors import CredentialsInvalid
from kplane.controlplane_operator.pki.primitives import public_key

__all__ = ["sign_claims", "signed_by"]

_COORDINATE_BYTES: Final = 32
"""Of a P-256 signature; ES256 puts the two one after the other (RFC 7518, 3.4)."""


def sign_claims(claims: Mapping[str, Any], *, key: bytes) -> str:
    """Return a JSON Web Token of these claims, signed by a private key (PEM) of ours.

    The key is named as API servers name it, so that they find it among several. Raises CredentialsInvalid where it is
    none.
    """
    signer = load_pem_private_key(key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CredentialsInvalid("not a private key of an elliptic curve")
    public = signer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "ES256", "kid": _encoded(hashlib.sha256(public).digest())}
    signed = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims))
    r, s = utils.decode_dss_signature(signer.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES))}"


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


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
