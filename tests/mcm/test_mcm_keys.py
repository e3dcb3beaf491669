"""Validation of the keys in a Secret, with some of which kube-controller-manager would refuse to start."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from hypothesis import given
from hypothesis import strategies as st

from kplane.mcm.describe.keys import usable_keys
from kplane.pki.primitives import KeyPair, create_authority
from kplane.provider import Cluster, ClusterConfig

ONE: KeyPair = create_authority("one")
OTHER: KeyPair = create_authority("other")
PKCS8, TRADITIONAL = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL
_Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | x25519.X25519PrivateKey


def pem(key: _Private, *, form: serialization.PrivateFormat = PKCS8, password: bytes = b"") -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"


def cluster(*, services: str = "Controllers", **keys: bytes) -> Cluster:
    """`sa_key` is `sa.key`, and `signing_ca_crt` is `signing-ca.crt`."""
    credentials = {name.replace("_ca_", "-ca.").replace("_", "."): value for name, value in keys.items()}
    config = ClusterConfig(server="https://127.0.0.1:1", token="t", ca_data=ONE.certificate)
    return Cluster("a", config=config, credentials=credentials, attributes={"services": services})


def broken(*, services: str = "Controllers", **keys: bytes) -> str:
    """Return the errors for the keys of a cluster that had no keys before."""
    credentials, sentences = usable_keys(cluster(services=services, **keys), former=cluster())
    assert (credentials == {}) is (bool(sentences) or not keys)
    return " ".join(sentences)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"sa_key": pem(RSA)},
        {"sa_key": pem(RSA, form=TRADITIONAL)},
        {"sa_key": pem(EC).replace(b"\n", b"\r\n")},
        {"sa_key": PARAMETERS + pem(EC, form=TRADITIONAL)},
        {"sa_key": ONE.certificate + b"what it is for\n" + pem(EC)},
        {"sa_key": b""},
        {"ca_crt": b"of the cluster\n" + ONE.certificate + OTHER.certificate},
        {"signing_ca_crt": ONE.certificate, "signing_ca_key": ONE.key},
        {"signing_ca_crt": ONE.certificate},
        {"signing_ca_key": b"half a signing CA is none"},
        {"sa_key": b"of no use to a scheduler", "services": "Scheduler"},
    ],
)
def test_keys_that_an_instance_can_start_with_give_no_error(keys: dict[str, bytes]) -> None:
    assert broken(**keys) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"sa_key": b"garbage"}, "sa.key"),
        ({"sa_key": ONE.certificate}, "sa.key"),
        ({"sa_key": pem(EC, password=b"password")}, "not encrypted"),
        ({"sa_key": pem(ed25519.Ed25519PrivateKey.generate())}, "an RSA or ECDSA private key"),
        ({"sa_key": pem(EC)[:90]}, "sa.key"),
        ({"ca_crt": b"garbage"}, "ca.crt"),
        ({"ca_crt": pem(EC)}, "ca.crt"),
        ({"ca_crt": ONE.certificate.replace(b"M", b"A")}, "ca.crt"),
        ({"signing_ca_crt": ONE.certificate + OTHER.certificate, "signing_ca_key": ONE.key}, "one CA certificate"),
        ({"signing_ca_crt": b"garbage", "signing_ca_key": ONE.key}, "signing-ca.crt"),
        ({"signing_ca_crt": ONE.certificate, "signing_ca_key": b"garbage"}, "signing-ca.key"),
        (
            {"signing_ca_crt": ONE.certificate, "signing_ca_key": pem(x25519.X25519PrivateKey.generate())},
            "signing-ca.key",
        ),
        ({"signing_ca_crt": ONE.certificate, "signing_ca_key": OTHER.key}, "its private key"),
    ],
)
def test_invalid_key_is_named_with_expected_form_but_not_shown(keys: dict[str, bytes], words: str) -> None:
    sentence = broken(**keys)  # type: ignore[arg-type]
    assert words in sentence
    assert "of its Secret: expected " in sentence
    for value in keys.values():
        assert not [line for line in value.decode().splitlines() if line in sentence]


def test_usable_former_keys_replace_only_unusable_new_keys() -> None:
    former = cluster(sa_key=pem(RSA), ca_crt=b"garbage", signing_ca_crt=ONE.certificate, signing_ca_key=ONE.key)
    misfit = {"signing_ca_crt": ONE.certificate, "signing_ca_key": OTHER.key}
    desired = cluster(sa_key=pem(EC), ca_crt=b"other", new=b"new", **misfit)
    credentials, (sentence,) = usable_keys(desired, former=former)
    assert credentials == {
        "sa.key": pem(EC),
        "ca.crt": b"other",  # the former ca.crt is unusable too, so the instance reports it
        "signing-ca.crt": ONE.certificate,
        "signing-ca.key": ONE.key,
        "new": b"new",
    }
    assert "signing-ca.crt and signing-ca.key" in sentence


def test_former_key_unused_by_a_scheduler_is_kept_only_if_usable() -> None:
    for value, (sa_key, error_count) in {pem(RSA): (pem(RSA), 1), b"garbage": (b"other", 0)}.items():
        former = cluster(services="Scheduler", sa_key=value)
        credentials, errors = usable_keys(cluster(services="Controllers,Scheduler", sa_key=b"other"), former=former)
        assert (credentials["sa.key"], len(errors)) == (sa_key, error_count)


def wrapped(der: bytes) -> bytes:
    return b"-----BEGIN PRIVATE KEY-----\n" + base64.encodebytes(der) + b"-----END PRIVATE KEY-----\n"


@given(st.binary() | st.binary().map(wrapped))
def test_error_for_any_bytes_has_the_same_words(content: bytes) -> None:
    errors = {broken(sa_key=content or b"-"), broken(signing_ca_crt=ONE.certificate, signing_ca_key=content or b"-")}
    assert errors == {broken(sa_key=b"x"), broken(signing_ca_crt=ONE.certificate, signing_ca_key=b"x")}
