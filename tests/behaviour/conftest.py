"""Virtual control plane from the view of its tenant: only the published kubeconfig, and no nodes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kplane.api import ControlPlane, ControlPlaneRegistration
from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Conflict, NotFound, Resource, resource_of
from kplane.provider.client.resources import NAMESPACES, PODS, SECRETS

_NAME = "behaves"
_READY_SECONDS = 120.0


def _resource(model: Any) -> Resource:
    return Resource(model.resource.api_version, model.resource.kind, model.resource.plural, namespaced=False)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A namespace of a control plane, with the rights of its administrator."""

    client: Client
    kubeconfig: Path
    namespace: str
    eventually: Callable[..., Awaitable[Any]]

    async def create(self, kind: str, name: str, **body: Any) -> dict[str, Any]:
        """Create an object. Keyword `metadata` is merged with the name."""
        metadata = {"name": name, **body.pop("metadata", {})}
        resource = resource_of(kind)
        return await self.client.create(resource, {"metadata": metadata, **body}, namespace=self._place(resource))

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        resource = resource_of(kind)
        return await self.client.get(resource, name, namespace=self._place(resource))

    async def found(self, kind: str, *, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind in the namespace, sorted by name."""
        listed = await self.client.list(resource_of(kind), namespace=self.namespace, label_selector=selector)
        return sorted(listed.items, key=lambda each: each["metadata"]["name"])

    async def names(self, kind: str, *, selector: str = "") -> list[str]:
        return [item["metadata"]["name"] for item in await self.found(kind, selector=selector)]

    async def patch(self, kind: str, name: str, body: dict[str, Any], *, subresource: str | None = None) -> None:
        resource = resource_of(kind)
        place = self._place(resource)
        await self.client.patch(resource, name, body, namespace=place, subresource=subresource)

    async def delete(self, kind: str, name: str, *, propagation: str | None = None) -> None:
        resource = resource_of(kind)
        await self.client.delete(resource, name, namespace=self._place(resource), propagation=propagation)

    async def is_gone(self, kind: str, name: str) -> bool:
        try:
            await self.get(kind, name)
        except NotFound:
            return True
        return False

    async def run_pods(self, *, selector: str = "", phase: str = "Running") -> None:
        """Write the status of each pending Pod as a kubelet does: running and ready, or with `phase`."""
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for number, pod in enumerate(await self.found("v1/Pod", selector=selector), start=1):
            if (pod.get("status") or {}).get("phase") == "Pending":
                ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": now}
                address = f"10.1.0.{number}"
                status = {"phase": phase, "conditions": [ready], "podIP": address, "podIPs": [{"ip": address}]}
                with contextlib.suppress(NotFound, Conflict):
                    name = pod["metadata"]["name"]
                    body = {"status": status}
                    await self.client.patch(PODS, name, body, namespace=self.namespace, subresource="status")

    async def settled(
        self, kind: str, name: str, accept: Callable[[dict[str, Any]], bool], *, run_pods: bool = True
    ) -> dict[str, Any]:
        """Wait until `accept` returns true for an object. Meanwhile, act as the kubelet."""

        async def look() -> dict[str, Any]:
            if run_pods:
                await self.run_pods()
            return await self.get(kind, name)

        accepted: dict[str, Any] = await self.eventually(look, accept)
        return accepted

    def _place(self, resource: Resource) -> str | None:
        return self.namespace if resource.namespaced else None


async def _until(probe: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not await probe():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {_READY_SECONDS:.0f} s")
        await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kubeconfig(management_cluster: Handle, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """Published kubeconfig of a control plane with a running instance."""
    control_planes, registrations = _resource(ControlPlane), _resource(ControlPlaneRegistration)
    async with Client(ClusterConfig.load(management_cluster.admin_kubeconfig), field_manager="kplane") as client:
        await client.create(control_planes, {"metadata": {"name": _NAME}, "spec": {"deletionPolicy": "Destroy"}})
        spec = {"controlPlaneRef": {"name": _NAME}, "services": ["Controllers"]}
        await client.create(registrations, {"metadata": {"name": _NAME}, "spec": spec})

        async def runs() -> bool:
            status = (await client.get(registrations, _NAME)).get("status") or {}
            conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
            return conditions.get("Running") == "True"

        await _until(runs)
        secret = await client.get(SECRETS, kubeconfig_secret_name(_NAME), namespace=management_namespace(_NAME))
        path = tmp_path_factory.mktemp("behaviour") / "kubeconfig"
        path.write_bytes(base64.b64decode(secret["data"]["kubeconfig"]))
        yield path
        for resource in (control_planes, registrations):
            with contextlib.suppress(NotFound):
                await client.delete(resource, _NAME)

        async def gone() -> bool:
            lists = [await client.list(entry) for entry in (control_planes, registrations)]
            return not any(item["metadata"]["name"] == _NAME for entry in lists for item in entry.items)

        await _until(gone)


@pytest.fixture
async def tenant(kubeconfig: Path, eventually: Callable[..., Awaitable[Any]]) -> AsyncIterator[Tenant]:
    """Separate namespace of each test. It is deleted without waiting, because the control plane is deleted too."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    async with Client(ClusterConfig.load(kubeconfig), field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield Tenant(client, kubeconfig, namespace, eventually)
        with contextlib.suppress(NotFound):
            await client.delete(NAMESPACES, namespace)
