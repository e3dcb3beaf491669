"""Certificates between mcm and its instances: each side trusts only the certificate of the other side."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["ReaderCertificate", "ServingCertificate"]

_VALID = dt.timedelta(days=3650)
_CLOCK_SKEW = dt.timedelta(days=30)
"""A certificate lives as long as mcm. It stays valid if the clock of its creation is set back by less than this."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """Self-signed serving certificate of an instance, and its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def create(cls, *, host: str) -> ServingCertificate:
        """Create a key and a certificate for a host name or an IP address."""
        return cls(
            *_sign_itself(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mcm instance")]),
                usage=ExtendedKeyUsageOID.SERVER_AUTH,
                alternative=_general_name(host),
            )
        )


@dataclass(frozen=True, slots=True)
class ReaderCertificate:
    """Self-signed client certificate with which mcm reads the metrics of its instances, and its key, in PEM.

    The certificate is its own CA, and instances trust no other CA. Its group is `system:masters`, which Kubernetes
    components authorize without a request to the API server (`AlwaysAllowGroups` of apiserver's
    DelegatingAuthorizationOptions). So an instance serves metrics even if its API server does not answer. No API
    server trusts this CA, so the certificate gives no access to an API server.
    """

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def create(cls) -> ReaderCertificate:
        """Create a key and a certificate."""
        name = [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
            x509.NameAttribute(NameOID.COMMON_NAME, "mcm"),
        ]
        return cls(*_sign_itself(x509.Name(name), usage=ExtendedKeyUsageOID.CLIENT_AUTH))


def _sign_itself(
    name: x509.Name, *, usage: x509.ObjectIdentifier, alternative: x509.GeneralName | None = None
) -> tuple[bytes, bytes]:
    """Return a self-signed certificate and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usages = dict.fromkeys(_OTHER_USAGES, False) | {"digital_signature": True, "key_cert_sign": True}
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usages), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    if alternative is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


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
