"""Registrations without the operator."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from kplane.embedded.credentials import MCM_USER
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES, ROLE_BINDINGS, ROLES, SECRETS
from kplane.provider.providers.kplane import REGISTRATIONS


class Fleet:
    """Registrations as controlplane-operator resolves them, written by hand."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.namespace = f"kplane-cp-{uuid.uuid4().hex[:10]}"
        self._names: list[str] = []

    def name(self, stem: str) -> str:
        return f"{stem}-{self.namespace[-10:]}"

    async def open(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})

    async def aclose(self) -> None:
        for name in self._names:
            with contextlib.suppress(NotFound):
                await self.client.delete(REGISTRATIONS, name)
        await self.client.delete(NAMESPACES, self.namespace)

    async def register(
        self,
        stem: str,
        secret: Mapping[str, bytes],
        *,
        server: str,
        profile: str = "Nodeless",
        services: tuple[str, ...] = ("Controllers",),
    ) -> str:
        await self.put_secret(stem, secret)
        return await self.add(stem, server=server, secret=stem, profile=profile, services=services)

    async def add(
        self, stem: str, *, server: str, secret: str, profile: str = "Nodeless", services: tuple[str, ...]
    ) -> str:
        """Create a registration with an existing Secret."""
        name = self.name(stem)
        spec = {"controlPlaneRef": {"name": name}, "services": list(services)}
        await self.client.create(REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
        self._names.append(name)
        await self.resolve(stem, server=server, secret=secret, profile=profile, services=services)
        return name

    async def put_secret(self, stem: str, secret: Mapping[str, bytes]) -> None:
        """Write a Secret, and allow mcm to read only this Secret."""
        data = {key: base64.b64encode(value).decode() for key, value in secret.items()}
        metadata = {"name": stem, "namespace": self.namespace}
        await self.client.apply(SECRETS, {"metadata": metadata, "data": data}, force=True)
        rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [stem], "verbs": ["get", "watch"]}]
        await self.client.apply(ROLES, {"metadata": metadata, "rules": rules}, force=True)
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": stem},
            "subjects": [{"apiGroup": group, "kind": "User", "name": MCM_USER}],
        }
        await self.client.apply(ROLE_BINDINGS, binding, force=True)

    async def told(self, stem: str) -> tuple[str, str, str]:
        """Return status and reason of the condition Running, and the control plane UID of the instance."""
        return self.instance_in(await self.client.get(REGISTRATIONS, self.name(stem)))

    async def condition(self, stem: str) -> dict[str, Any]:
        """Return the condition Running, or an empty dict."""
        status = (await self.client.get(REGISTRATIONS, self.name(stem))).get("status") or {}
        return next((item for item in status.get("conditions", ()) if item["type"] == "Running"), {})

    async def withdraw(self, stem: str) -> None:
        """Make the registration unready, as during the deletion of its control plane."""
        registration = await self.client.get(REGISTRATIONS, self.name(stem))
        status = {"ready": False, "controlPlaneUID": None, "observedGeneration": registration["metadata"]["generation"]}
        await self.client.patch(REGISTRATIONS, self.name(stem), {"status": status}, subresource="status")

    async def resolve(
        self,
        stem: str,
        *,
        server: str,
        secret: str,
        profile: str = "Nodeless",
        services: tuple[str, ...] = ("Controllers",),
    ) -> None:
        registration = await self.client.get(REGISTRATIONS, self.name(stem))
        status = {
            "ready": True,
            "observedGeneration": registration["metadata"]["generation"],
            "resolvedEndpoint": server,
            "resolvedControllersSecretRef": {"name": secret, "namespace": self.namespace},
            "controlPlaneUID": self.uid_at(server),
            "services": list(services),
            "controllers": {"profile": profile} if profile else {},
        }
        await self.client.patch(REGISTRATIONS, self.name(stem), {"status": status}, subresource="status")

    @staticmethod
    def uid_at(server: str) -> str:
        """Return the uid of the control plane at an address."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, server))

    @staticmethod
    def instance_in(registration: Mapping[str, Any]) -> tuple[str, str, str]:
        """Return status and reason of the condition Running, and the control plane UID of the instance."""
        status = registration["status"]
        running: dict[str, str] = next((item for item in status.get("conditions", ()) if item["type"] == "Running"), {})
        return (
            running.get("status", ""),
            running.get("reason", ""),
            status.get("instance", {}).get("controlPlaneUID", ""),
        )


@pytest.fixture
async def fleet(api_server: Any) -> AsyncIterator[Fleet]:
    """Registrations on the management cluster, without the operator."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        fleet = Fleet(client)
        await fleet.open()
        try:
            yield fleet
        finally:
            await fleet.aclose()
