"""Both operators on a management cluster, as users have them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kplane.api import ControlPlane, ControlPlaneClass, ControlPlaneEndpoint, ControlPlaneRegistration
from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import SECRETS
from kplane.workloads import find_processes

KINDS = {
    model.resource.kind: Resource(
        model.resource.api_version, model.resource.kind, model.resource.plural, namespaced=False
    )
    for model in (ControlPlane, ControlPlaneRegistration, ControlPlaneEndpoint, ControlPlaneClass)
}
"""In the order of deletion: a control plane's class makes its registration again as long as it is there."""


@dataclass(frozen=True, slots=True)
class Platform:
    """The management cluster as its administrator."""

    client: Client
    handle: Handle
    eventually: Callable[..., Awaitable[Any]]

    async def create(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        return await self.client.create(KINDS[kind], {"metadata": {"name": name}, "spec": spec})

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object and wait until it is gone."""

        async def left() -> dict[str, Any] | None:
            try:
                return await self.client.get(KINDS[kind], name)
            except NotFound:
                return None

        with contextlib.suppress(NotFound):
            await self.client.delete(KINDS[kind], name)
        await self.eventually(left, lambda found: found is None)

    async def status(self, kind: str, name: str) -> dict[str, Any]:
        return (await self.client.get(KINDS[kind], name)).get("status") or {}

    async def ready(self, kind: str, name: str) -> dict[str, Any]:
        def told(status: dict[str, Any]) -> bool:
            conditions = status.get("conditions") or []
            return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)

        return await self.eventually(lambda: self.status(kind, name), told)

    async def kubeconfig(self, name: str) -> bytes:
        secret = await self.client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
        return base64.b64decode(secret["data"]["kubeconfig"])

    async def tenant(self, name: str) -> ClusterConfig:
        return ClusterConfig.from_kubeconfig(await self.kubeconfig(name))

    def instance(self, registration: str) -> dict[str, Any] | None:
        """What mcm says of the instance of a registration; None where it has none."""
        with urllib.request.urlopen(f"{self.handle.mcm_url}/clusters", timeout=30) as answer:
            found: dict[str, Any] | None = json.load(answer)["clusters"].get(registration)
        return found

    async def running(self, registration: str, *, other_than: int | None = None) -> int:
        """Wait until the instance of a registration is healthy (with another pid), and return its pid."""

        def accept(found: dict[str, Any] | None) -> bool:
            return found is not None and found["state"] == "Ready" and found["pid"] != other_than

        return (await self.eventually(lambda: self.instance(registration), accept))["pid"]


def pids_of(directory: Path, program: str) -> set[int]:
    """Processes below a directory whose command line has these words in it."""
    found = set()
    for pid in find_processes(directory):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if program in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.add(pid)
    return found


@pytest.fixture(scope="session")
def eventually(eventually: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """As everywhere, with more patience: what is awaited here other processes do, and the machine may be busy."""
    return functools.partial(eventually, timeout=120.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(
    management_cluster: Handle, eventually: Callable[..., Awaitable[Any]], namespaces_go_at_once: Any
) -> AsyncIterator[Platform]:
    """A management cluster with both operators, for all tests of a module: each takes names of its own.

    Everything that its tests made is deleted in the end, and awaited.
    """
    config = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        made = Platform(client, management_cluster, eventually)
        try:
            yield made
        finally:
            for resource in KINDS.values():
                await _delete_all(made, resource)


async def _delete_all(platform: Platform, resource: Resource) -> None:
    names = [found["metadata"]["name"] for found in (await platform.client.list(resource)).items]
    await asyncio.gather(*(platform.delete(resource.kind, name) for name in names))
