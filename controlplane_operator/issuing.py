"""Issues the credentials that kubeconfigs carry, uses them again while they are good, and renews them in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from api.names import GROUP, KUBECONFIG_KEY
from controlplane_operator.bootstrap import request_token
from controlplane_operator.cache import Object
from controlplane_operator.credentials import KeyPair, expiry, issue_client, renewal_due
from controlplane_operator.errors import CredentialsInvalid
from controlplane_operator.secrets import data_of
from provider import Client, ClusterConfig, KubeconfigError

__all__ = ["Identity", "issue_certificate", "issue_token", "of_certificate", "reusable", "until_renewal"]

_RENEW_AT: Final = f"{GROUP}/renew-at"
_EXPIRES_AT: Final = f"{GROUP}/expires-at"
_LIFETIME: Final = timedelta(hours=24)
_RENEWED_AFTER: Final = 2 / 3


@dataclass(frozen=True, slots=True)
class Identity:
    """What a kubeconfig authenticates with: a token or a client certificate, and when it is to be renewed."""

    renew_at: datetime
    expires_at: datetime
    token: str | None = field(default=None, repr=False)
    client: KeyPair | None = None

    def annotations(self) -> dict[str, str]:
        """Return what the Secret of the kubeconfig notes about it."""
        return {_RENEW_AT: self.renew_at.isoformat(), _EXPIRES_AT: self.expires_at.isoformat()}

    def config(self, administrator: ClusterConfig) -> ClusterConfig:
        """Return how this identity connects to where the administrator does."""
        return ClusterConfig(
            server=administrator.server,
            ca_data=administrator.ca_data,
            token=self.token,
            client_certificate=self.client.certificate if self.client is not None else None,
            client_key=self.client.key if self.client is not None else None,
        )


async def issue_token(client: Client, *, service_account: str) -> Identity:
    """Ask the control plane for a token of one of our ServiceAccounts; the life that it grants counts."""
    asked = datetime.now(UTC)
    token = await request_token(client, service_account=service_account, lifetime=_LIFETIME)
    life = token.expires_at - asked
    return Identity(asked + life * _RENEWED_AFTER, token.expires_at, token=token.value)


def issue_certificate(authority: KeyPair, *, user: str) -> Identity:
    """Issue a client certificate for a user of the control plane."""
    return of_certificate(issue_client(authority, user=user, lifetime=_LIFETIME))


def of_certificate(client: KeyPair) -> Identity:
    """Return the identity that a client certificate gives; whoever issued it says when it is due."""
    ends = expiry(client.certificate)
    return Identity(ends - _LIFETIME * (1 - _RENEWED_AFTER), ends, client=client)


def reusable(secret: Object | None, *, by_certificate: bool) -> Identity | None:
    """Return the identity in a published Secret, where it is of the wanted kind and not yet to be renewed."""
    if secret is None:
        return None
    annotations = secret["metadata"].get("annotations") or {}
    try:
        renew_at = datetime.fromisoformat(annotations[_RENEW_AT])
        expires_at = datetime.fromisoformat(annotations[_EXPIRES_AT])
        config = ClusterConfig.from_kubeconfig(data_of(secret)[KUBECONFIG_KEY])
        now = datetime.now(UTC)
        if now >= renew_at:
            return None
        if not by_certificate:
            return Identity(renew_at, expires_at, token=config.token) if config.token is not None else None
        if config.client_certificate is None or config.client_key is None:
            return None
        if renewal_due(config.client_certificate, now=now):
            return None
        return Identity(renew_at, expires_at, client=KeyPair(config.client_certificate, config.client_key))
    except (KeyError, ValueError, TypeError, KubeconfigError, CredentialsInvalid):
        # Somebody edited it: what cannot be read is issued anew.
        return None


def until_renewal(*identities: Identity) -> float:
    """Return the seconds until the first of them is to be renewed."""
    return max(1.0, min((identity.renew_at - datetime.now(UTC)).total_seconds() for identity in identities))
