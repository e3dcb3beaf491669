"""The shared etcd of an embedded management cluster, as its user `root`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kplane.data import Client

__all__ = ["TenantsEtcd"]

_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsEtcd:
    """Access to the shared etcd from any process and event loop. Methods raise `kplane.data.DataError`."""

    endpoint: str
    credentials: Path
    """Directory with `ca.crt`, `client.crt` and `client.key`."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Connect while the context lasts."""
        # Imported here, because clusters without kplane's operators also run without an installed gRPC.
        from kplane.data import Client, Credentials

        credentials = Credentials.in_directory(self.credentials)
        async with Client(self.endpoint, credentials=credentials, timeout_seconds=_TIMEOUT_SECONDS) as client:
            yield client

    async def count(self, prefix: str) -> int:
        """Return the number of keys below a prefix."""
        async with self.client() as client:
            return await client.count(prefix)

    async def digests(self, prefix: str, *, of_interest: Callable[[str], bool]) -> Mapping[str, str]:
        """Return a hash of value and revision, by key, of the keys below a prefix for which `of_interest` is true."""
        async with self.client() as client:
            items = [item async for page in client.pages(prefix) for item in page.items]
        return {
            item.key.decode(): hashlib.sha256(item.value + str(item.revision).encode()).hexdigest()
            for item in items
            if of_interest(item.key.decode())
        }
