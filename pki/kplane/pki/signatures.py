"""Signatures of ServiceAccount tokens: made and checked by the key of a control plane."""

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
    """Return a JSON Web Token of these claims, signed by a private key (PEM) of ours.

    The key is named as API servers name it, so that they find it among several. Raises CredentialsInvalid where it is
    none.
    """
    signer = load_pem_private_key(key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CredentialsInvalid("not a private key of an elliptic curve")
    public = signer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "ES256", "kid": encoded(hashlib.sha256(public).digest())}
    return signed(*(json.dumps(part, separators=(",", ":")).encode() for part in (header, claims)), key=signer)


def signed_by(token: str, *, key: bytes) -> bool:
    """Tell whether a private key (PEM) of ours signed a token. Raises CredentialsInvalid where the key is none.

    It says nothing of whether the token is good otherwise: that is up to the API server.
    """
    verifier = load_pem_public_key(public_key(key))
    return isinstance(verifier, ec.EllipticCurvePublicKey) and is_signed_by(token, key=verifier)
