"""Signatures of ServiceAccount tokens, created and verified with the key of a control plane."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import public_key
from kplane.provider.access.es256 import encoded, is_signed_by, signed

__all__ = ["sign_claims", "signed_by"]


def sign_claims(claims: Mapping[str, Any], *, key: bytes) -> str:
    """Return a JSON Web Token of these claims, signed with a private key (PEM) of the control plane.

    The key id has the same form as in API servers, so that an API server with several keys finds the key. Raises
    CredentialsInvalid if the private key is not of an elliptic curve, and ValueError if `key` is no private key.
    """
    signer = load_pem_private_key(key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CredentialsInvalid("not a private key of an elliptic curve")
    public = signer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "ES256", "kid": encoded(hashlib.sha256(public).digest())}
    return signed(*(json.dumps(part, separators=(",", ":")).encode() for part in (header, claims)), key=signer)


def signed_by(token: str, *, key: bytes) -> bool:
    """Return whether a private key (PEM) of the control plane signed a token.

    The function checks the signature only; the API server checks the claims. Raises CredentialsInvalid if `key` is no
    private key.
    """
    verifier = load_pem_public_key(public_key(key))
    return isinstance(verifier, ec.EllipticCurvePublicKey) and is_signed_by(token, key=verifier)
