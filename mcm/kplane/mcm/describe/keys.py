"""What a Secret has for controllers, as kube-controller-manager will read it: some it would refuse to start with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kplane.mcm.describe.controllers import keys_of
from kplane.mcm.describe.services import Served, served
from kplane.provider import Cluster

__all__ = ["usable_keys"]

_AUTHORITY: Final = ("signing-ca.crt", "signing-ca.key")

_Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def usable_keys(cluster: Cluster, *, former: Cluster) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Put `former`'s keys in the place of those of the Secret that no instance could start with.

    Returns the credentials, and a sentence on each that it kept: which one, and what to do, but nothing of what it is.
    What `former` does not have is left out, and what is broken there too is left as it is: nothing better was there.
    """
    if Served.CONTROLLERS not in served(cluster):
        return cluster.credentials, ()
    before = _broken(keys_of(former))
    kept = {names: sentence for names, sentence in _broken(keys_of(cluster)).items() if names not in before}
    theirs = {name for names in kept for name in names}
    credentials = {name: value for name, value in cluster.credentials.items() if name not in theirs}
    credentials |= {name: value for name, value in former.credentials.items() if name in theirs}
    return credentials, tuple(kept.values())


def _broken(keys: Mapping[str, bytes]) -> dict[tuple[str, ...], str]:
    """Tell of the keys of the Secret that no instance could start with, those together that only work together.

    kube-controller-manager reads them when its controllers start, and ends where one cannot be used (client-go's
    util/cert and util/keyutil; pkg/controller/certificates/signer/ca_provider.go). Only the form of keys is looked at,
    which takes less than a millisecond.
    """
    found: dict[tuple[str, ...], str] = {}
    if "ca.crt" in keys and not _certificates(keys["ca.crt"]):
        found["ca.crt",] = (
            "key 'ca.crt' of its Secret has no certificates in PEM form; put the root CA there, or leave it out"
        )
    if "sa.key" in keys and not isinstance(_signer(keys["sa.key"]), rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        found["sa.key",] = (
            "key 'sa.key' of its Secret has no RSA or ECDSA key in PEM form without a password; put the private key"
            " there that signs tokens of ServiceAccounts"
        )
    if _AUTHORITY[0] in keys and (sentence := _broken_authority(*(keys[name] for name in _AUTHORITY))):
        found[_AUTHORITY] = sentence
    return found


def _broken_authority(certificate: bytes, key: bytes) -> str:
    found, signer = _certificates(certificate), _signer(key)
    if len(found) != 1:
        return (
            "key 'signing-ca.crt' of its Secret is not one certificate in PEM form; put the CA there that signs"
            " certificate requests"
        )
    if signer is None:
        return (
            "key 'signing-ca.key' of its Secret has no private key in PEM form without a password; put the one of"
            " 'signing-ca.crt' there"
        )
    try:
        fits = found[0].public_key() == signer.public_key()
    except (ValueError, UnsupportedAlgorithm):
        fits = False
    if fits:
        return ""
    return "keys 'signing-ca.crt' and 'signing-ca.key' of its Secret do not fit together; put a pair there"


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion):
        return []


def _signer(pem: bytes) -> _Signer | None:
    try:
        # Whether an RSA key adds up takes a tenth of a second to find out, and longer where somebody wants it to.
        key = load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, _Signer) else None
