"""Signatures of ServiceAccount tokens, created and verified with the key of a control plane."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import public_key

__all__ = ["sign_claims", "signed_by"]

_ALGORITHM: Final = "ES256"


def sign_claims(claims: Mapping[str, Any], *, key: bytes) -> str:
    """Return a JSON Web Token of these claims, signed with a private key (PEM) of the control plane.

    The key id has the same form as in API servers, so that an API server with several keys finds the key. Raises
    CredentialsInvalid if the private key is not of an elliptic curve, and ValueError if `key` is no private key.
    """
    signer = load_pem_private_key(key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CredentialsInvalid("not a private key of an elliptic curve")
    public = signer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    key_id = base64.urlsafe_b64encode(hashlib.sha256(public).digest()).rstrip(b"=").decode()
    # An empty type leaves the header out, as API servers do.
    headers = {"kid": key_id, "typ": ""}
    return jwt.api_jws.encode(orjson.dumps(dict(claims)), signer, algorithm=_ALGORITHM, headers=headers)


def signed_by(token: str, *, key: bytes) -> bool:
    """Return whether a private key (PEM) of the control plane signed a token.

    The function checks the signature only; the API server checks the claims. Raises CredentialsInvalid if `key` is no
    private key.
    """
    verifier = load_pem_public_key(public_key(key))
    if not isinstance(verifier, ec.EllipticCurvePublicKey):
        return False
    try:
        jwt.api_jws.decode(token, verifier, algorithms=[_ALGORITHM])
    except jwt.PyJWTError:
        return False
    return True
