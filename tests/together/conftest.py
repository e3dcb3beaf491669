"""Operator and mcm on a management cluster, as users run them."""

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
"""Kinds in the order of deletion: a ControlPlane with a class recreates its registration."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Management cluster, with the rights of its administrator."""

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
            return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

        return await self.eventually(lambda: self.status(kind, name), told)

    async def kubeconfig(self, name: str) -> bytes:
        secret = await self.client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
        return base64.b64decode(secret["data"]["kubeconfig"])

    async def tenant(self, name: str) -> ClusterConfig:
        return ClusterConfig.from_kubeconfig(await self.kubeconfig(name))

    def instance(self, registration: str) -> dict[str, Any] | None:
        """Return the summary that mcm serves for the instance of a registration, or None without an instance."""
        with urllib.request.urlopen(f"{self.handle.mcm_url}/clusters", timeout=30) as answer:
            summary: dict[str, Any] | None = json.load(answer)["clusters"].get(registration)
        return summary

    async def running(self, registration: str, *, other_than: int | None = None) -> int:
        """Wait until the instance of a registration is healthy, and return its pid. `other_than` excludes a pid."""

        def accept(found: dict[str, Any] | None) -> bool:
            return found is not None and found["state"] == "Ready" and found["pid"] != other_than

        return (await self.eventually(lambda: self.instance(registration), accept))["pid"]


def pids_of(directory: Path, program: str) -> set[int]:
    """Return the pids of processes below a directory whose command line contains `program`."""
    pids = set()
    for pid in find_processes(directory):
        with contextlib.suppress(OSError):  # the process has ended
            if program in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                pids.add(pid)
    return pids


@pytest.fixture(scope="session")
def eventually(eventually: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Extend the timeout of `eventually` to 120 s: tests wait for other processes, and the machine may be busy."""
    return functools.partial(eventually, timeout=120.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(
    management_cluster: Handle, eventually: Callable[..., Awaitable[Any]], namespaces_go_at_once: Any
) -> AsyncIterator[Platform]:
    """Management cluster with both operators, shared by the tests of a module. Each test uses separate names.

    At the end, the fixture deletes all objects of the tests, and waits for the deletion.
    """
    config = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        result = Platform(client, management_cluster, eventually)
        try:
            yield result
        finally:
            for resource in KINDS.values():
                await _delete_all(result, resource)


async def _delete_all(platform: Platform, resource: Resource) -> None:
    names = [item["metadata"]["name"] for item in (await platform.client.list(resource)).items]
    await asyncio.gather(*(platform.delete(resource.kind, name) for name in names))
