"""What a Secret has for controllers, as kube-controller-manager will read it: some it would refuse to start with."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from mcm.configuration import keys_of
from mcm.services import Served, served
from provider import Cluster

__all__ = ["broken_key"]

_Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def broken_key(cluster: Cluster) -> str:
    """Tell which key of the Secret no instance could start with, and what to do; empty where there is none such.

    The sentence shows nothing of them. kube-controller-manager reads them when its controllers start, and ends where
    one cannot be used (client-go's util/cert and util/keyutil; pkg/controller/certificates/signer/ca_provider.go). Only
    the form of keys is looked at, which takes less than a millisecond.
    """
    if Served.CONTROLLERS not in served(cluster):
        return ""
    keys = keys_of(cluster)
    if "ca.crt" in keys and not _certificates(keys["ca.crt"]):
        return "key 'ca.crt' of its Secret has no certificates in PEM form; put the root CA there, or leave it out"
    if "sa.key" in keys and not isinstance(_signer(keys["sa.key"]), rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        return (
            "key 'sa.key' of its Secret has no RSA or ECDSA key in PEM form without a password; put the private key"
            " there that signs tokens of ServiceAccounts"
        )
    return _broken_authority(keys["signing-ca.crt"], keys["signing-ca.key"]) if "signing-ca.key" in keys else ""


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
