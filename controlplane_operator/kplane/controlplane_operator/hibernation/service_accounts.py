"""ServiceAccounts of a control plane before its sleep, by which the gateway refuses tokens of deleted accounts."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kplane.provider import Client
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from kplane.provider.errors import AnswerTooLarge

__all__ = ["ServiceAccount", "accounts_entry", "list_accounts"]

_MAX_ACCOUNTS: Final = 1000
"""Maximum number of accounts in an entry, which has 35 bytes for each."""
_DIGEST_BYTES: Final = 16
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, order=True)
class ServiceAccount:
    """A ServiceAccount. An account that is created again has the same name and another uid."""

    namespace: str
    name: str
    uid: str


async def list_accounts(client: Client) -> tuple[ServiceAccount, ...] | None:
    """Return all ServiceAccounts of a control plane, sorted; None if there are more than 1,000.

    Raises ProviderError if the API server does not answer.
    """
    try:
        listing = await client.list(SERVICE_ACCOUNTS, metadata_only=True, max_items=_MAX_ACCOUNTS)
    except AnswerTooLarge:
        return None
    metadata = (account["metadata"] for account in listing.items)
    return tuple(sorted(ServiceAccount(fields["namespace"], fields["name"], fields["uid"]) for fields in metadata))


def accounts_entry(accounts: Iterable[ServiceAccount]) -> bytes:
    """Return the gateway's entry for these accounts: a salt, and for each account its shortened hash."""
    salt = secrets.token_bytes(_SALT_BYTES)
    texts = (f"{account.namespace}/{account.name}/{account.uid}" for account in accounts)
    digests = [hmac.digest(salt, text.encode(), "sha256")[:_DIGEST_BYTES].hex() for text in texts]
    return json.dumps({"salt": salt.hex(), "accounts": digests}, separators=(",", ":")).encode()
