"""A certificate authority in memory, for webhooks in development."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Issued", "bundle_with"]

_NAME: Final = "kplane-provider development webhooks"
_AUTHORITY_DAYS: Final = 3650
_SERVING_DAYS: Final = 30
_CLOCK_SKEW: Final = timedelta(days=30)
"""Certificates stay valid if the clock of their creation is set back by less than this."""
_BUNDLED: Final = 32
"""Maximum number of authorities in a caBundle: those of other replicas, and of processes that have ended."""


class Issued(NamedTuple):
    """A certificate and its key in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs serving certificates with a key that no file holds."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            self._builder(self._name, self._key.public_key(), days=_AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self._identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        self.certificate: Final = made.public_bytes(serialization.Encoding.PEM)
        """Certificate of the authority in PEM."""

    def issue(self, hosts: Iterable[str]) -> Issued:
        """Return a certificate for host names and addresses, valid for 30 days."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhooks")])
        made = (
            self._builder(subject, key.public_key(), days=_SERVING_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(
            made.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + timedelta(days=days))
        )


def bundle_with(certificate: bytes, bundle: bytes) -> bytes:
    """Return a caBundle with the certificate of an authority, and the newest others of development in `bundle`.

    Each process has an authority of its own, and all replicas answer. So a process keeps the authorities of the others,
    except the oldest ones if there are more than 32. The order is the same for all, so that they agree on it.
    """
    own = x509.load_pem_x509_certificate(certificate)
    others = [each for each in _certificates(bundle) if each.subject == own.subject and each != own]
    kept = sorted([own, *others], key=_age, reverse=True)[:_BUNDLED]
    if own not in kept:
        kept[-1] = own
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in kept)


def _age(certificate: x509.Certificate) -> tuple[datetime, int]:
    # The end of validity orders authorities of all versions of kplane. Their start depends on the clock skew.
    return certificate.not_valid_after_utc, certificate.serial_number


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
