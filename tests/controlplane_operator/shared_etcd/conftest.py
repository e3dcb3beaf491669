"""Keepers of the shared etcd's credentials on a real management cluster, each test in a namespace of its own."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.surroundings import may_read, open_namespace
from kplane.controlplane_operator.secret_access import DEFAULT_SECRETS_ROLE
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.keeper import CredentialsKeeper
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS

SERVICE = "kplane-etcd"


@dataclass
class Site:
    """A namespace of the management cluster, and a clock that tests move."""

    client: Client
    """Client of the administrator."""
    operator: Client
    """Client with the rights of the operator."""
    namespace: str
    directory: Path
    later: timedelta = timedelta()
    etcds: list[SharedEtcd] = field(default_factory=list)

    def keeper(self, *, endpoint: str = "https://localhost:1", client: Client | None = None) -> CredentialsKeeper:
        """Return a keeper without memory, as after a start of the operator."""
        self.etcd = SharedEtcd(endpoint)
        self.etcds.append(self.etcd)
        return CredentialsKeeper(
            client or self.operator,
            etcd=self.etcd,
            service=SERVICE,
            namespace=self.namespace,
            directory=self.directory,
            now=lambda: datetime.now(UTC) + self.later,
        )

    async def secret(self, name: str) -> dict[str, Any]:
        return await self.client.get(SECRETS, f"{SERVICE}-{name}", namespace=self.namespace)

    async def data(self, name: str) -> dict[str, bytes]:
        secret = await self.secret(name)
        return {entry: base64.b64decode(content) for entry, content in secret["data"].items()}

    async def edit(self, name: str, **changes: Any) -> None:
        await self.client.patch(SECRETS, f"{SERVICE}-{name}", changes, namespace=self.namespace)

    async def delete(self, name: str) -> None:
        await self.client.delete(SECRETS, f"{SERVICE}-{name}", namespace=self.namespace)


@pytest.fixture
async def site(api_server: Handle, tmp_path: Path, eventually: Callable[..., Any]) -> AsyncIterator[Site]:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        Client(ClusterConfig.load(api_server.operator_kubeconfig), field_manager="kplane") as operator,
    ):
        namespace = f"etcd-{secrets.token_hex(4)}"
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        await open_namespace(client, namespace, role=DEFAULT_SECRETS_ROLE)
        try:
            await eventually(lambda: may_read(operator, namespace))
            site = Site(client, operator, namespace, tmp_path / "credentials")
            yield site
            for etcd in site.etcds:
                await etcd.close()
        finally:
            await client.delete(NAMESPACES, namespace)


@pytest.fixture
def shared_etcd(own_etcd: Any) -> Any:
    """Separate etcd for each test: these tests disable its access control and change permissions of users."""
    return own_etcd


@pytest.fixture
def unreachable() -> Callable[[], Client]:
    """Return a factory of clients whose API server is unreachable."""
    return lambda: Client(
        ClusterConfig(server="https://127.0.0.1:1", token="none"), timeout_seconds=1.0, field_manager="kplane"
    )
