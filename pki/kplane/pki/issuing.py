"""Issues the credentials that kubeconfigs carry, uses them again while they are good, and renews them in time."""

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
"""On a published Secret: when the operator renews the credentials in it."""
_EXPIRES_AT: Final = f"{GROUP}/expires-at"
"""On a published Secret: when the credentials in it end."""
_LIFETIME: Final = f"{GROUP}/lifetime"
"""On a published Secret: how long the class lets its credentials live, if they were issued for that."""
_CHECKSUM: Final = f"{GROUP}/checksum"
"""On a published Secret: a digest of its credentials and annotations, which shows edits."""
_RENEWED_AFTER: Final = 1 / 3
"""Two days of the default lifetime are left then: users keep their access while an operator is down for a day."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a kubeconfig authenticates with: a token or a client certificate, and when it is to be renewed."""

    renew_at: datetime
    expires_at: datetime
    token: str | None = field(default=None, repr=False)
    client: KeyPair | None = None
    lifetime: timedelta | None = None
    """What was asked for, which the API server need not have granted; None if no lifetime was asked for."""

    @property
    def issued_at(self) -> datetime:
        """When the credential was issued, by the clock of the operator that asked for it."""
        return self.expires_at - (self.expires_at - self.renew_at) / (1 - _RENEWED_AFTER)

    def annotations(self) -> dict[str, str]:
        """Return what the Secret of the kubeconfig notes about it; the checksum shows edits."""
        noted = {_RENEW_AT: self.renew_at.isoformat(), _EXPIRES_AT: self.expires_at.isoformat()}
        if self.lifetime is not None:
            noted[_LIFETIME] = f"{self.lifetime.total_seconds():g}s"
        return {**noted, _CHECKSUM: self._checksum(noted)}

    def config(self, administrator: ClusterConfig) -> ClusterConfig:
        """Return how this identity connects to where the administrator does."""
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
    """Issue a token of a ServiceAccount by the control plane's own key, which needs no API server.

    It has the claims that API servers give and check. It is not bound to an object besides the ServiceAccount.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    # An API server whose clock is late takes it too. API servers allow for a minute themselves.
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
    """Issue a client certificate for a user of the control plane."""
    renew_at = datetime.now(UTC) + lifetime * _RENEWED_AFTER
    identity = of_certificate(issue_client(authority, user=user, lifetime=lifetime))
    return replace(identity, renew_at=renew_at, lifetime=lifetime)


def of_token(value: str, *, asked_at: datetime, expires_at: datetime, lifetime: timedelta) -> Identity:
    """Return the identity that a token gives which an API server issued; `lifetime` is what it was asked for."""
    renew_at = asked_at + (expires_at - asked_at) * _RENEWED_AFTER
    return Identity(renew_at, expires_at, token=value, lifetime=lifetime)


def of_certificate(client: KeyPair) -> Identity:
    """Return the identity that a client certificate gives, with the time when it is due."""
    return Identity(renewal_time(client.certificate), expiry(client.certificate), client=client)


def reusable(secret: Mapping[str, Any] | None, *, by_certificate: bool, lifetime: timedelta) -> Identity | None:
    """Return the identity in a published Secret, where it is as it was issued, of the wanted kind, not to be renewed.

    One that was issued for another lifetime than the wanted one is not used again, nor one from the future.
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
        # It was edited: what cannot be read is issued anew.
        return None
    return identity if good else None


def expires_at(secret: Mapping[str, Any]) -> datetime | None:
    """Return when the credentials in a published Secret end, with time zone; None where it does not say."""
    try:
        ends = datetime.fromisoformat(secret["metadata"]["annotations"][_EXPIRES_AT])
    except (KeyError, ValueError, TypeError):
        return None
    return ends if ends.tzinfo is not None else None


def until_renewal(*identities: Identity) -> float:
    """Return the seconds until the first of them is to be renewed."""
    return max(1.0, min((identity.renew_at - datetime.now(UTC)).total_seconds() for identity in identities))


def issued_under(identity: Identity, *, authorities: TenantAuthorities) -> bool:
    """Tell whether the keys that issue now issued it: others may be trusted still, and will not be for long."""
    if identity.client is not None:
        return issued_by(identity.client.certificate, authority=authorities.client)
    return identity.token is not None and signed_by(identity.token, key=authorities.service_account_key)
