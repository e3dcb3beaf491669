"""Bound ServiceAccount tokens of a control plane."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import Any, Final

from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.tenant.bootstrap import TENANT_NAMESPACE
from kplane.pki.issuing import Identity, of_token
from kplane.provider import Client

__all__ = ["Token", "issue_token", "request_token"]

_TOKEN: Final = re.compile(r"[-._~+/=0-9A-Za-z]{1,16384}")
"""Pattern of a bearer token by RFC 6750, with a length that fits into headers."""


@dataclass(frozen=True, slots=True)
class Token:
    """Bearer token with the expiry that the API server granted."""

    value: str = field(repr=False)
    expires_at: dt.datetime


async def request_token(
    client: Client, *, service_account: str, lifetime: dt.timedelta, namespace: str = TENANT_NAMESPACE
) -> Token:
    """Request a token of a ServiceAccount. The API server may grant a shorter or longer lifetime.

    Raises BootstrapFailed if the answer has no valid token, and the errors of `client`.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(lifetime.total_seconds())},
    }
    answer: Any = await client.request("POST", path, body=body)
    try:
        value, expires = answer["status"]["token"], dt.datetime.fromisoformat(answer["status"]["expirationTimestamp"])
        # The token is written into Secrets and headers, so it must be valid for both.
        if _TOKEN.fullmatch(value) and expires.tzinfo is not None:
            return Token(value=value, expires_at=expires)
    except (KeyError, TypeError, ValueError):
        pass
    raise BootstrapFailed(f"the API server gave no token for ServiceAccount {service_account}")


async def issue_token(client: Client, *, service_account: str, lifetime: dt.timedelta) -> Identity:
    """Request a token of a ServiceAccount in `TENANT_NAMESPACE`. The granted lifetime applies.

    Raises BootstrapFailed if the token has expired already by the local clock, because its renewal would never end.
    """
    requested_at = dt.datetime.now(dt.UTC)
    token = await request_token(client, service_account=service_account, lifetime=lifetime)
    if token.expires_at <= requested_at:
        raise BootstrapFailed(
            f"the API server gave a token that ended at {token.expires_at.isoformat()}, and here it is"
            f" {requested_at.isoformat(timespec='seconds')}; set the clocks of both machines right"
        )
    return of_token(token.value, asked_at=requested_at, expires_at=token.expires_at, lifetime=lifetime)
