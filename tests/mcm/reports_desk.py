"""A registration and the reporter of its instance, on a real API server with the rights of production."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import RegistrationMode
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Client, Cluster, ClusterConfig, NotFound, Resource
from kplane.provider.cache.informer import Informer
from kplane.provider.errors import ClusterNotOwned
from kplane.provider.providers.kplane.registration import REGISTRATIONS

Eventually = Callable[..., Any]


class Faulty(Client):
    """A client that counts its writes, and simulates faults of an API server."""

    fault: Exception | None = None
    silent = False

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(config, field_manager="kplane")
        self.written_at: list[float] = []

    @property
    def writes(self) -> int:
        return len(self.written_at)

    @override
    async def list(self, resource: Resource, **options: Any) -> Any:
        if self.silent:
            await asyncio.Event().wait()
        return await super().list(resource, **options)

    @override
    async def apply(self, resource: Resource, body: dict[str, Any], **options: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        if self.silent:
            await asyncio.Event().wait()
        self.written_at.append(time.monotonic())
        return await super().apply(resource, body, **options)


class Desk:
    """A registration that is ready for a control plane, and the reporter of its instance."""

    def __init__(self, admin: Client, client: Faulty, mirror: Informer, eventually: Eventually) -> None:
        self.admin = admin
        self.client = client
        self.mine = True
        """Whether this mcm owns the registration."""
        self.fenced = False
        """Whether another mcm owns the registration, so that writes are refused."""
        self.seconds_left = 60.0
        """Seconds until another mcm may own the registration."""
        self.unseen = False
        """Whether the registration is not selected any more."""
        self.name = f"report-{uuid.uuid4().hex[:10]}"
        self.uid = f"uid-{uuid.uuid4().hex[:6]}"
        self._mirror = mirror
        self._eventually = eventually
        self.reports = self.another()

    def another(self, *, mode: RegistrationMode = RegistrationMode.SHARED) -> StatusReporter:
        """Return the reporter of another run of mcm."""
        return StatusReporter(
            self.client,
            registration=self.seen,
            version="v1.36.3",
            mine=lambda _: self.mine,
            before_write=self._require_write,
            mode=mode,
        )

    def _require_write(self, name: str) -> float | None:
        if self.fenced:
            raise ClusterNotOwned(f"{name} is another's")
        return self.seconds_left

    def seen(self, name: str) -> dict[str, Any] | None:
        return self._mirror.get(name) if not self.unseen else None

    @property
    def cluster(self) -> Cluster:
        config = ClusterConfig(server="https://127.0.0.1:1", token="t")
        return Cluster(self.name, config=config, attributes={"controlPlaneUID": self.uid})

    async def resolve(self, **status: Any) -> None:
        """Write the status as the operator does, with `status` as further fields."""
        body = {"status": {"ready": True, "controlPlaneUID": self.uid, **status}}
        written = await self.admin.patch(REGISTRATIONS, self.name, body, subresource="status")
        await self._watched(written)

    async def caught_up(self) -> None:
        """Wait until the watch has seen all writes so far."""
        await self._watched(await self.admin.get(REGISTRATIONS, self.name))

    async def _watched(self, written: dict[str, Any]) -> None:
        version = int(written["metadata"]["resourceVersion"])

        def seen() -> int:
            registration = self.seen(self.name)
            return int(registration["metadata"]["resourceVersion"]) if registration is not None else 0

        await self._eventually(seen, lambda found: found >= version)

    async def status(self) -> dict[str, Any]:
        status: dict[str, Any] = (await self.admin.get(REGISTRATIONS, self.name))["status"]
        return status

    async def running(self) -> tuple[str, str]:
        """Return status and reason of the condition Running."""
        conditions = [item for item in (await self.status()).get("conditions", ()) if item["type"] == "Running"]
        return (conditions[0]["status"], conditions[0]["reason"]) if conditions else ("", "")


@pytest.fixture
async def desk(api_server: Any, eventually: Eventually) -> AsyncIterator[Desk]:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as admin,
        Faulty(ClusterConfig.load(api_server.mcm_kubeconfig)) as client,
    ):
        mirror = Informer(client, REGISTRATIONS)
        task = asyncio.create_task(mirror.run())
        desk = Desk(admin, client, mirror, eventually)
        spec = {"controlPlaneRef": {"name": desk.name}, "services": ["Controllers"]}
        await admin.create(REGISTRATIONS, {"metadata": {"name": desk.name}, "spec": spec})
        await desk.resolve()
        try:
            yield desk
        finally:
            task.cancel()
            await asyncio.wait([task])
            with contextlib.suppress(NotFound):
                await admin.delete(REGISTRATIONS, desk.name)
