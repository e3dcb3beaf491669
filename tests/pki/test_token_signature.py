"""Which key signed a token can be told, whatever the token is."""

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
    """A token as RFC 7515 and RFC 7518 make it."""
    signed = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"ES256"}', b'{"a":1}'))
    private = load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(private.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    signature = r.to_bytes(32) + s.to_bytes(32)
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def test_the_key_that_signed_is_told_from_others() -> None:
    token = sign(KEY)
    assert signed_by(token, key=KEY)
    assert not signed_by(token, key=OTHER)
    head, body, signature = token.split(".")
    assert not signed_by(f"{head}.{body}x.{signature}", key=KEY)


def test_what_we_sign_is_told_as_ours_and_names_its_key_as_api_servers_do() -> None:
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
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert not signed_by(text, key=KEY)
