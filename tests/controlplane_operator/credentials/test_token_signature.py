"""Which key signed a token can be told, whatever the token is."""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from kplane.controlplane_operator.pki.issuing import signed_by
from kplane.controlplane_operator.pki.primitives import create_signing_key

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


@given(st.text())
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert not signed_by(text, key=KEY)
