"""Issues the credentials in kubeconfigs, reuses them while they are valid, and renews them in time."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.api.clocks import CLOCKS_DIFFER, is_future
from kplane.api.names import GROUP
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.kubeconfig import config_of
from kplane.pki.primitives import KeyPair, expiry, issue_client, issued_by, renewal_time
from kplane.pki.signatures import sign_claims, signed_by
from kplane.provider import ClusterConfig

__all__ = [
    "Identity",
    "expires_at",
    "issue_certificate",
    "issued_under",
    "of_certificate",
    "of_token",
    "reusable",
    "sign_token",
    "until_renewal",
]

_RENEW_AT: Final = f"{GROUP}/renew-at"
"""Annotation of a published Secret: time at which the operator renews its credentials."""
_EXPIRES_AT: Final = f"{GROUP}/expires-at"
"""Annotation of a published Secret: expiry of its credentials."""
_LIFETIME: Final = f"{GROUP}/lifetime"
"""Annotation of a published Secret: lifetime that the class sets, if the credentials were issued with a lifetime."""
_CHECKSUM: Final = f"{GROUP}/checksum"
"""Annotation of a published Secret: digest of its credentials and annotations, which reveals edits."""
_RENEWED_AFTER: Final = 1 / 3
"""Share of the lifetime before renewal. Two days of the default lifetime remain, so a day of downtime is harmless."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Credential of a kubeconfig, a token or a client certificate, with the time of its renewal."""

    renew_at: datetime
    expires_at: datetime
    token: str | None = field(default=None, repr=False)
    client: KeyPair | None = None
    lifetime: timedelta | None = None
    """The requested lifetime; an API server may grant another lifetime. None if no lifetime was requested."""

    @property
    def issued_at(self) -> datetime:
        """Time of issue, by the clock of the operator that requested the credential."""
        return self.expires_at - (self.expires_at - self.renew_at) / (1 - _RENEWED_AFTER)

    def annotations(self) -> dict[str, str]:
        """Return the annotations for the kubeconfig's Secret; the checksum reveals edits."""
        notes = {_RENEW_AT: self.renew_at.isoformat(), _EXPIRES_AT: self.expires_at.isoformat()}
        if self.lifetime is not None:
            notes[_LIFETIME] = f"{self.lifetime.total_seconds():g}s"
        return {**notes, _CHECKSUM: self._checksum(notes)}

    def config(self, administrator: ClusterConfig) -> ClusterConfig:
        """Return the connection of this identity to the administrator's API server."""
        return ClusterConfig(
            server=administrator.server,
            ca_data=administrator.ca_data,
            token=self.token,
            client_certificate=self.client.certificate if self.client is not None else None,
            client_key=self.client.key if self.client is not None else None,
            proxy=administrator.proxy,
        )

    def _checksum(self, noted: Mapping[str, str]) -> str:
        pair = self.client or KeyPair(b"", b"")
        parts = ((self.token or "").encode(), pair.certificate, pair.key, *(noted[name].encode() for name in noted))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def sign_token(key: bytes, *, namespace: str, service_account: str, uid: str, lifetime: timedelta) -> Identity:
    """Issue a ServiceAccount token with the control plane's own key, without a request to an API server.

    The token has the claims that API servers issue and check. It is bound to no object besides the ServiceAccount.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    # An API server with a slow clock accepts the token too. API servers themselves tolerate a minute.
    begins, ends = now - CLOCKS_DIFFER, now + lifetime
    claims = {
        "aud": [SERVICE_ACCOUNT_ISSUER],
        "exp": int(ends.timestamp()),
        "iat": int(begins.timestamp()),
        "iss": SERVICE_ACCOUNT_ISSUER,
        "jti": str(uuid.uuid4()),
        "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": service_account, "uid": uid}},
        "nbf": int(begins.timestamp()),
        "sub": f"system:serviceaccount:{namespace}:{service_account}",
    }
    return Identity(now + lifetime * _RENEWED_AFTER, ends, token=sign_claims(claims, key=key), lifetime=lifetime)


def issue_certificate(authority: KeyPair, *, user: str, lifetime: timedelta) -> Identity:
    """Issue a client certificate for a user of the control plane. `lifetime` is its lifetime."""
    renew_at = datetime.now(UTC) + lifetime * _RENEWED_AFTER
    identity = of_certificate(issue_client(authority, user=user, lifetime=lifetime))
    return replace(identity, renew_at=renew_at, lifetime=lifetime)


def of_token(value: str, *, asked_at: datetime, expires_at: datetime, lifetime: timedelta) -> Identity:
    """Return the identity of a token that an API server issued. `lifetime` is the requested lifetime."""
    renew_at = asked_at + (expires_at - asked_at) * _RENEWED_AFTER
    return Identity(renew_at, expires_at, token=value, lifetime=lifetime)


def of_certificate(client: KeyPair) -> Identity:
    """Return the identity of a client certificate, with the time of its renewal."""
    return Identity(renewal_time(client.certificate), expiry(client.certificate), client=client)


def reusable(secret: Mapping[str, Any] | None, *, by_certificate: bool, lifetime: timedelta) -> Identity | None:
    """Return the identity in a published Secret if it is unedited, of the desired kind, and not due for renewal.

    Returns None for an identity with another lifetime than `lifetime`, and for an identity issued in the future.
    """
    config = config_of(secret)
    if secret is None or config is None:
        return None
    annotations = secret["metadata"].get("annotations") or {}
    try:
        pair = None
        if config.client_certificate is not None and config.client_key is not None:
            pair = KeyPair(config.client_certificate, config.client_key)
        identity = Identity(
            datetime.fromisoformat(annotations[_RENEW_AT]),
            datetime.fromisoformat(annotations[_EXPIRES_AT]),
            token=config.token if pair is None else None,
            client=pair,
            lifetime=lifetime,
        )
        issued = all(annotations.get(name) == value for name, value in identity.annotations().items())
        now = datetime.now(UTC)
        current = not is_future(identity.issued_at, now=now) and now < identity.renew_at
        good = issued and current and (pair is not None) is by_certificate
    except (KeyError, ValueError, TypeError):
        # The Secret was edited. Unreadable credentials are issued again.
        return None
    return identity if good else None


def expires_at(secret: Mapping[str, Any]) -> datetime | None:
    """Return the expiry of the credentials in a published Secret, with time zone; None without a valid annotation."""
    try:
        ends = datetime.fromisoformat(secret["metadata"]["annotations"][_EXPIRES_AT])
    except (KeyError, ValueError, TypeError):
        return None
    return ends if ends.tzinfo is not None else None


def until_renewal(*identities: Identity) -> float:
    """Return the seconds until the first renewal of these identities, at least 1."""
    return max(1.0, min((identity.renew_at - datetime.now(UTC)).total_seconds() for identity in identities))


def issued_under(identity: Identity, *, authorities: TenantAuthorities) -> bool:
    """Return whether the currently issuing keys issued this identity; other trusted keys will soon be dropped."""
    if identity.client is not None:
        return issued_by(identity.client.certificate, authority=authorities.client)
    return identity.token is not None and signed_by(identity.token, key=authorities.service_account_key)
