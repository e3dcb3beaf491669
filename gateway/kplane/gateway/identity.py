"""Verification of client certificates against the client CAs of a control plane."""

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
    """A certificate does not prove an identity to this control plane. The message is for the log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """User of a control plane, as its API server would derive it from the certificate (CommonNameUserConversion)."""

    user: str
    groups: tuple[str, ...]
    credential: str
    """Digest of the certificate, for `userInfo.extra`."""
    until: dt.datetime
    """Expiry of the certificate."""


def chain_of(header: str) -> bytes:
    """Return the certificate chain of the connection (PEM) from Envoy's header `x-forwarded-client-cert`.

    Raises NotVerified if the header has no chain.
    """
    match = _CHAIN.search(header)
    if match is None:
        raise NotVerified("the connection has no client certificate")
    return unquote_to_bytes(match[1])


def verify(chain: bytes, *, authorities: bytes, now: dt.datetime) -> Identity:
    """Return the identity that a chain proves, if one of `authorities` (PEM) issued it.

    The rules are those of kube-apiserver. The chain must lead to a CA with valid times, signatures and basic
    constraints, and the certificate must allow client authentication. Raises NotVerified if a rule does not hold.
    """
    try:
        leaf, *intermediates = x509.load_pem_x509_certificates(chain)
    except ValueError as error:
        raise NotVerified(f"the certificate cannot be read: {error}") from error
    if len(intermediates) >= _LONGEST_CHAIN:
        raise NotVerified("the chain of the certificate is too long")
    try:
        # The extensions of the leaf are checked below, or have no meaning here. CA certificates must follow the rules
        # of the Web PKI.
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
    names = [str(attribute.value) for attribute in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    # Go's crypto/x509 takes the last common name.
    if not names or not names[-1]:
        raise NotVerified("the certificate names no user")
    groups = [str(attribute.value) for attribute in leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    for name in (names[-1], *groups):
        _check_name(name)
    digest = hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
    return Identity(names[-1], tuple(groups), f"X509SHA256={digest}", leaf.not_valid_after_utc)


def _check_name(name: str) -> None:
    """Raise NotVerified if a header would change the name, for example by removing spaces at its ends."""
    if name != name.strip() or not name.isprintable():
        raise NotVerified(f"the certificate names {name!r}, which cannot be handed on")


class Verifier:
    """Verifies client certificates, and caches identities for up to five minutes."""

    def __init__(self, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[dt.datetime, Identity]] = OrderedDict()

    def verify(self, chain: bytes, *, authorities: bytes) -> Identity:
        """Return the identity as the function `verify` does, at the current time.

        The cache key contains the CAs. So an identity for a CA never counts for another CA.
        """
        now = self._clock()
        key = hashlib.sha256(authorities).digest() + hashlib.sha256(chain).digest()
        cached = self._known.get(key)
        if cached is not None and now < cached[0]:
            self._known.move_to_end(key)
            return cached[1]
        identity = verify(chain, authorities=authorities, now=now)
        self._known[key] = min(now + _KEPT_FOR, identity.until), identity
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return identity
