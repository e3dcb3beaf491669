"""The key that signed a token is recognized, for any token."""

from __future__ import annotations

import base64
import hashlib
import json

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from kplane.pki.primitives import create_signing_key
from kplane.pki.signatures import sign_claims, signed_by

KEY, OTHER = create_signing_key(), create_signing_key()


def sign(key: bytes) -> str:
    """Return a token as defined by RFC 7515 and RFC 7518."""
    signing_input = ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"ES256"}', b'{"a":1}')
    )
    private = load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(private.sign(signing_input.encode(), ec.ECDSA(hashes.SHA256())))
    signature = r.to_bytes(32) + s.to_bytes(32)
    return f"{signing_input}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def test_signed_by_accepts_only_the_signing_key() -> None:
    token = sign(KEY)
    assert signed_by(token, key=KEY)
    assert not signed_by(token, key=OTHER)
    head, body, signature = token.split(".")
    assert not signed_by(f"{head}.{body}x.{signature}", key=KEY)


def test_signed_claims_name_their_key_as_api_servers_do() -> None:
    token = sign_claims({"sub": "a", "aud": ["b"]}, key=KEY)
    assert signed_by(token, key=KEY)
    assert not signed_by(token, key=OTHER)
    header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2])
    assert claims == {"sub": "a", "aud": ["b"]}
    assert header["alg"] == "ES256"
    der = (
        load_pem_private_key(KEY, password=None)
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    assert base64.urlsafe_b64decode(header["kid"] + "=") == hashlib.sha256(der).digest()


@given(st.text())
def test_signed_by_rejects_arbitrary_text(text: str) -> None:
    assert not signed_by(text, key=KEY)
