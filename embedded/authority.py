"""A certificate authority that is kept in a directory, and the certificates it issues."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Pair", "keep_key", "write_private"]

_CA_LIFE = dt.timedelta(days=3650)
_LEAF_LIFE = dt.timedelta(days=365)
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def write_private(file: Path, *, content: bytes) -> None:
    """Write a file that only this user may read, in one step."""
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


def keep_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key in a file; make one where there is none yet."""
    if not file.exists():
        write_private(file, content=_pem(ec.generate_private_key(ec.SECP256R1())))
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{file} holds another kind of key than the one that is written there.")
    return key


class Authority:
    """A CA. It stays the same as long as its directory does, so that what it issued stays valid."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def keep(cls, directory: Path, *, name: str) -> Self:
        """Read the authority in `ca.crt` and `ca.key` of a directory; make one where there is none yet."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = keep_key(directory / "ca.key")
        file = directory / "ca.crt"
        if not file.exists():
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            )
            builder = (
                _builder(subject, issuer=subject, key=key, life=_CA_LIFE)
                .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(usage, critical=True)
            )
            write_private(file, content=builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return cls(x509.load_pem_x509_certificate(file.read_bytes()), key)

    @property
    def certificate(self) -> bytes:
        """The CA's certificate, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, organizations: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Issue a certificate: of a client, and where `hosts` are given, of a server under these names too."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
        builder = _builder(x509.Name(subject), issuer=self._certificate.subject, key=key, life=_LEAF_LIFE)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name, *, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # Not PKCS #8: kube-apiserver takes the public half of a ServiceAccount key out of this form only.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
