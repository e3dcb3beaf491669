"""Serving certificates of instances, so that nobody but the instance can answer its readiness probe."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["ServingCertificate"]

_VALID = dt.timedelta(days=3650)
_CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate that is its own authority, in PEM. It is made for one instance and ends with it."""

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def create(cls, *, host: str) -> ServingCertificate:
        """Make a key and a certificate for a host name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mcm instance")])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        usage = dict.fromkeys(_OTHER_USAGES, False) | {"digital_signature": True, "key_cert_sign": True}
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                critical=False,
            )
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


_OTHER_USAGES = (
    "content_commitment",
    "crl_sign",
    "data_encipherment",
    "decipher_only",
    "encipher_only",
    "key_agreement",
    "key_encipherment",
)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
