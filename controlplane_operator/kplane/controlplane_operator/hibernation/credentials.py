"""Credentials that wake a control plane. The gateway gets their hashes before the API server ends."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from kplane.api import ControlPlane
from kplane.api.names import (
    GATEWAY_ACCOUNTS_KEY,
    GATEWAY_BOOTSTRAP_TOKENS_KEY,
    GATEWAY_HOST_KEY,
    gateway_secret_name,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.hibernation.bootstrap_tokens import BootstrapToken, tokens_entry
from kplane.controlplane_operator.hibernation.service_accounts import ServiceAccount, accounts_entry
from kplane.provider import NotFound
from kplane.provider.client.resources import SECRETS

__all__ = ["Credentials", "record_credentials"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials that only the API server of a control plane knows."""

    tokens: tuple[BootstrapToken, ...] = ()
    """Bootstrap tokens that the API server accepts."""
    accounts: tuple[ServiceAccount, ...] | None = ()
    """All ServiceAccounts; None if there are too many to record, so that the gateway accepts tokens of any account."""


async def record_credentials(context: OperatorContext, control_plane: ControlPlane, credentials: Credentials) -> None:
    """Write the credentials that wake a control plane into its gateway Secret, if it is published by path.

    Raises ConditionError (SecretsNotReadable) while the operator may not read the gateway's namespace.
    """
    gateway = context.gateway
    if gateway is None:
        return
    await context.secrets.open(gateway.namespace)
    name = gateway_secret_name(control_plane.name)
    existing = context.stores.secrets.get((gateway.namespace, name))
    if existing is None or GATEWAY_HOST_KEY in (existing.get("data") or {}):
        # On a connection to a host name, the gateway sees no tokens.
        return
    accounts = accounts_entry(credentials.accounts) if credentials.accounts is not None else None
    data = {
        GATEWAY_BOOTSTRAP_TOKENS_KEY: _encoded(tokens_entry(credentials.tokens)),
        # An entry of an earlier sleep would refuse newer accounts.
        GATEWAY_ACCOUNTS_KEY: _encoded(accounts) if accounts is not None else None,
    }
    try:
        await context.client.patch(SECRETS, name, {"data": data}, namespace=gateway.namespace)
    except NotFound:
        # A later pass creates the Secret again. Until then, the gateway does not serve this control plane.
        return


def _encoded(entry: bytes) -> str:
    return base64.b64encode(entry).decode()
