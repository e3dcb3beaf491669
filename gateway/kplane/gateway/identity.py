"""Who the holder of a client certificate is, to one control plane."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store, VerificationError

from kplane.gateway.errors import GatewayError

__all__ = ["Identity", "NotVerified", "Verifier", "chain_of", "verify"]

_CHAIN: Final = re.compile('(?:^|;)Chain="([^"]*)"')
_LONGEST_CHAIN: Final = 8
_KEPT: Final = 4096
_KEPT_FOR: Final = dt.timedelta(minutes=5)


class NotVerified(GatewayError):
    """A certificate says nothing about its holder to this control plane; the message is for the log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of one control plane, as its API server would read the certificate (CommonNameUserConversion)."""

    user: str
    groups: tuple[str, ...]
    credential: str
    """Names the certificate, in `userInfo.extra`."""
    until: dt.datetime
    """When the certificate ends."""


def chain_of(header: str) -> bytes:
    """Return the chain of the connection's certificate, PEM, out of Envoy's header. Raises NotVerified."""
    found = _CHAIN.search(header)
    if found is None:
        raise NotVerified("the connection has no client certificate")
    return unquote_to_bytes(found[1])


def verify(chain: bytes, *, authorities: bytes, now: dt.datetime) -> Identity:
    """Return the identity that a chain proves, where one of `authorities` (PEM) issued it. Raises NotVerified.

    The rules are those of kube-apiserver: a valid chain of time, signatures and basic constraints to one of the CAs,
    and a certificate for clients.
    """
    try:
        leaf, *intermediates = x509.load_pem_x509_certificates(chain)
    except ValueError as error:
        raise NotVerified(f"the certificate cannot be read: {error}") from error
    if len(intermediates) >= _LONGEST_CHAIN:
        raise NotVerified("the chain of the certificate is too long")
    try:
        # Of the leaf, each extension is read below or has no meaning here; of CAs, the rules of the Web PKI count.
        policies = PolicyBuilder().store(_store(authorities)).time(now.replace(tzinfo=None))
        policies = policies.extension_policies(ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=_leaf_policy())
        policies.build_client_verifier().verify(leaf, intermediates)
        return _identity(leaf)
    except (VerificationError, ValueError, x509.UnsupportedGeneralNameType, x509.InvalidVersion) as error:
        raise NotVerified(str(error)) from error


@lru_cache(maxsize=256)
def _store(authorities: bytes) -> Store:
    return Store(x509.load_pem_x509_certificates(authorities))


def _leaf_policy() -> ExtensionPolicy:
    def for_clients(_policy: object, _leaf: x509.Certificate, usage: x509.ExtendedKeyUsage | None) -> None:
        allowed = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
        if usage is not None and not allowed & set(usage):
            raise ValueError("it is no certificate for clients")

    return ExtensionPolicy.permit_all().may_be_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, for_clients)


def _identity(leaf: x509.Certificate) -> Identity:
    names = [str(found.value) for found in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    # Go's crypto/x509 takes the last one.
    if not names or not names[-1]:
        raise NotVerified("the certificate names no user")
    groups = [str(found.value) for found in leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    for name in (names[-1], *groups):
        _check_name(name)
    digest = hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
    return Identity(names[-1], tuple(groups), f"X509SHA256={digest}", leaf.not_valid_after_utc)


def _check_name(name: str) -> None:
    """Raise NotVerified where a header would carry another name than the certificate says."""
    if name != name.strip() or not name.isprintable():
        raise NotVerified(f"the certificate names {name!r}, which cannot be handed on")


class Verifier:
    """Verifies certificates, and remembers for minutes what it found."""

    def __init__(self, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[dt.datetime, Identity]] = OrderedDict()

    def verify(self, chain: bytes, *, authorities: bytes) -> Identity:
        """As the function of that name, at this moment. The answer for one CA is never that for another."""
        now = self._clock()
        key = hashlib.sha256(authorities).digest() + hashlib.sha256(chain).digest()
        known = self._known.get(key)
        if known is not None and now < known[0]:
            self._known.move_to_end(key)
            return known[1]
        identity = verify(chain, authorities=authorities, now=now)
        self._known[key] = min(now + _KEPT_FOR, identity.until), identity
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return identity
