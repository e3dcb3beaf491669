"""Keys, certificate authorities and the certificates that they issue. All keys are EC P-256.

Extensions follow RFC 5280 closely enough for Python 3.13, which verifies strictly by default.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kplane.pki.errors import CredentialsInvalid

__all__ = [
    "AUTHORITY_LIFETIME",
    "CLOCK_SKEW",
    "LEAF_LIFETIME",
    "LONG_CLOCK_SKEW",
    "KeyPair",
    "check_pair",
    "create_authority",
    "create_signing_key",
    "expiry",
    "hosts_of",
    "issue_client",
    "issue_serving",
    "issued_by",
    "public_fingerprint",
    "public_key",
    "renewal_due",
    "renewal_time",
    "user_of",
    "valid_from",
]

AUTHORITY_LIFETIME: Final = dt.timedelta(days=3650)
LEAF_LIFETIME: Final = dt.timedelta(days=365)

CLOCK_SKEW: Final = dt.timedelta(minutes=5)
"""Time before its issue from which a certificate is valid, for slow clocks of peers."""
LONG_CLOCK_SKEW: Final = dt.timedelta(days=30)
"""The same for certificates that no controller replaces in time, such as authorities. They stay valid if the clock of
their creation is set back by less than this."""
_RENEWED_AFTER: Final = 2 / 3
"""Share of its life after which a certificate is renewed."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def create_authority(
    common_name: str, *, lifetime: dt.timedelta = AUTHORITY_LIFETIME, former_key: bytes | None = None
) -> KeyPair:
    """Create a certificate authority that signs leaf certificates only.

    Pass `former_key` to reuse the key of a former authority. With an equal name, clients that trust the former
    certificate also trust leaf certificates of the new authority.
    """
    key = ec.generate_private_key(ec.SECP256R1()) if former_key is None else _load_key(former_key)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    clock_skew = max(CLOCK_SKEW, min(LONG_CLOCK_SKEW, lifetime / 100))
    certificate = (
        _builder(name, issuer=name, key=key.public_key(), lifetime=lifetime, clock_skew=clock_skew)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def issue_serving(
    authority: KeyPair,
    *,
    common_name: str,
    hosts: Sequence[str],
    client: bool = False,
    lifetime: dt.timedelta = LEAF_LIFETIME,
    clock_skew: dt.timedelta = CLOCK_SKEW,
) -> KeyPair:
    """Issue a serving certificate for the DNS names and IP addresses in `hosts`. It is valid from now - `clock_skew`.

    With `client`, the certificate is also a client certificate, as members of etcd need it among themselves.
    """
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _issue(
        authority,
        subject=_subject(common_name),
        usages=usages,
        names=names,
        lifetime=lifetime,
        clock_skew=clock_skew,
    )


def issue_client(
    authority: KeyPair,
    *,
    user: str,
    groups: Sequence[str] = (),
    lifetime: dt.timedelta = LEAF_LIFETIME,
    clock_skew: dt.timedelta = CLOCK_SKEW,
) -> KeyPair:
    """Issue a client certificate for a user and its groups (Kubernetes: CN and O). Valid from now - `clock_skew`."""
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    return _issue(
        authority,
        subject=_subject(user, groups),
        usages=usages,
        names=None,
        lifetime=lifetime,
        clock_skew=clock_skew,
    )


def create_signing_key() -> bytes:
    """Create a private key (PEM) for signing ServiceAccount tokens."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def public_key(key: bytes) -> bytes:
    """Return the public key (PEM) of a private key. Raises CredentialsInvalid if `key` is no private key."""
    return (
        _load_key(key)
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def public_fingerprint(key: bytes) -> str:
    """Return the SHA-256, in hexadecimal digits, of the public key (DER) of a private key.

    Raises CredentialsInvalid if `key` is no private key.
    """
    public = _load_key(key).public_key()
    encoded = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def valid_from(certificate: bytes) -> dt.datetime:
    """Return the start of a certificate's validity, with time zone. Raises CredentialsInvalid for no certificate."""
    return _load(certificate).not_valid_before_utc


def expiry(certificate: bytes) -> dt.datetime:
    """Return the end of a certificate's validity, with time zone. Raises CredentialsInvalid for no certificate."""
    return _load(certificate).not_valid_after_utc


def renewal_due(certificate: bytes, *, now: dt.datetime) -> bool:
    """Return whether two thirds of a certificate's life have passed, or its validity has not begun.

    In the latter case the issuer's clock was ahead. Peers reject such a certificate before its validity begins.
    """
    return now < _load(certificate).not_valid_before_utc or now >= renewal_time(certificate)


def renewal_time(certificate: bytes) -> dt.datetime:
    """Return the time at which two thirds of a certificate's life have passed, with time zone.

    The life begins at the time of issue, which is 5 minutes after the start of validity: the difference allows for slow
    clocks of peers. Raises CredentialsInvalid for no certificate.
    """
    loaded = _load(certificate)
    issued = loaded.not_valid_before_utc + CLOCK_SKEW
    return issued + (loaded.not_valid_after_utc - issued) * _RENEWED_AFTER


def hosts_of(certificate: bytes) -> frozenset[str]:
    """Return the DNS names and IP addresses of a serving certificate."""
    try:
        names = _load(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return frozenset(names.get_values_for_type(x509.DNSName)) | addresses


def user_of(certificate: bytes) -> str:
    """Return the user of a client certificate; empty if the certificate has no CN."""
    names = _load(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def check_pair(pair: KeyPair) -> None:
    """Raise CredentialsInvalid unless certificate and key are readable and belong together."""
    try:
        certified = _load(pair.certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CredentialsInvalid(f"the certificate has no key that can be used: {error}") from None
    if certified != _load_key(pair.key).public_key():
        raise CredentialsInvalid("certificate and key do not belong together")


def issued_by(certificate: bytes, *, authority: KeyPair) -> bool:
    """Return whether an authority issued a certificate."""
    try:
        _load(certificate).verify_directly_issued_by(_load(authority.certificate))
    except (ValueError, TypeError, InvalidSignature, CredentialsInvalid):
        return False
    return True


def _issue(
    authority: KeyPair,
    *,
    subject: x509.Name,
    usages: list[x509.ObjectIdentifier],
    names: x509.SubjectAlternativeName | None,
    lifetime: dt.timedelta,
    clock_skew: dt.timedelta,
) -> KeyPair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _load(authority.certificate)
    issuer_key = _load_key(authority.key)
    builder = (
        _builder(subject, issuer=issuer.subject, key=key.public_key(), lifetime=lifetime, clock_skew=clock_skew)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    *,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lifetime: dt.timedelta,
    clock_skew: dt.timedelta,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - clock_skew)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(common_name: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise CredentialsInvalid(f"not a PEM certificate: {error}") from None


def _load_key(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        loaded = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        raise CredentialsInvalid("not a PEM private key") from None
    except UnsupportedAlgorithm as error:
        raise CredentialsInvalid(f"not a private key that can be used: {error}") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise CredentialsInvalid("not a private key of an elliptic curve")
    return loaded


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_pem(key))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
