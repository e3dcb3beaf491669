"""Validation of the keys of a Secret, because kube-controller-manager ends at its start if a key is invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kplane.mcm.describe.controllers import keys_of
from kplane.mcm.describe.kinds import InstanceKind, instance_kinds
from kplane.provider import Cluster

__all__ = ["usable_keys"]


class _Rule(NamedTuple):
    """Keys that are used together, and their expected content. `fits` raises or returns False for other content."""

    names: tuple[str, ...]
    expected: str
    fits: Callable[..., bool]


def usable_keys(cluster: Cluster, *, former: Cluster) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Replace invalid keys of a cluster by the keys of its former description, if these are valid or absent.

    Return the credentials, and a sentence for each replacement. A sentence contains no part of a key.
    """
    if InstanceKind.CONTROLLERS not in instance_kinds(cluster):
        return cluster.credentials, ()
    accepted = _invalid(former)
    replaced = [rule for rule in _invalid(cluster) if rule not in accepted]
    names = {name for rule in replaced for name in rule.names}
    credentials = {name: value for name, value in cluster.credentials.items() if name not in names}
    credentials |= {name: value for name, value in former.credentials.items() if name in names}
    return credentials, tuple(
        f"{' and '.join(rule.names)} of its Secret: expected {rule.expected}" for rule in replaced
    )


def _invalid(cluster: Cluster) -> list[_Rule]:
    """Return the rules that a cluster violates. A rule counts only if the Secret has all of its keys.

    kube-controller-manager reads the keys when its controllers start, and ends if a key is invalid (client-go's
    util/cert and util/keyutil; pkg/controller/certificates/signer/ca_provider.go).
    """
    keys = keys_of(cluster)
    return [rule for rule in _RULES if keys.keys() >= set(rule.names) and not _obeys(keys, rule)]


def _obeys(keys: Mapping[str, bytes], rule: _Rule) -> bool:
    try:
        return rule.fits(*(keys[name] for name in rule.names))
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        return False


def _is_bundle(pem: bytes) -> bool:
    return bool(x509.load_pem_x509_certificates(pem))


def _signs_tokens(pem: bytes) -> bool:
    return isinstance(_private_key(pem), rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey)


def _is_authority(certificate: bytes, key: bytes) -> bool:
    [authority] = x509.load_pem_x509_certificates(certificate)
    signer = _private_key(key)
    if not isinstance(signer, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey):
        return False
    return authority.public_key() == signer.public_key()


def _private_key(pem: bytes) -> object:
    # Without validation, which takes a tenth of a second for an RSA key, and longer for a hostile key.
    return load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)


_RULES: Final = (
    _Rule(("ca.crt",), "certificates in PEM form", _is_bundle),
    _Rule(("sa.key",), "an RSA or ECDSA private key in PEM form, not encrypted", _signs_tokens),
    _Rule(("signing-ca.crt", "signing-ca.key"), "one CA certificate and its private key in PEM form", _is_authority),
)
