"""One registration, and who tells it of its instance, on a real API server with the rights of production."""

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
    """Counts its writes, and may meet faults that a real API server shows to nobody on demand."""

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
    """One registration that is ready for a control plane, and who tells it of its instance."""

    def __init__(self, admin: Client, client: Faulty, mirror: Informer, eventually: Eventually) -> None:
        self.admin = admin
        self.client = client
        self.mine = True
        """Whether the instance of the registration is the business of these reports."""
        self.fenced = False
        """Whether another process speaks of it."""
        self.seconds_left = 60.0
        """Until another process may."""
        self.unseen = False
        """Whether the registration is not selected any more."""
        self.name = f"report-{uuid.uuid4().hex[:10]}"
        self.uid = f"uid-{uuid.uuid4().hex[:6]}"
        self._mirror = mirror
        self._eventually = eventually
        self.reports = self.another()

    def another(self, *, mode: RegistrationMode = RegistrationMode.SHARED) -> StatusReporter:
        """mcm, after it was started again."""
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
        """Write what the operator would, and what it says of readiness besides."""
        body = {"status": {"ready": True, "controlPlaneUID": self.uid, **status}}
        written = await self.admin.patch(REGISTRATIONS, self.name, body, subresource="status")
        await self._watched(written)

    async def caught_up(self) -> None:
        """Wait until the watch has told of all that was written so far."""
        await self._watched(await self.admin.get(REGISTRATIONS, self.name))

    async def _watched(self, written: dict[str, Any]) -> None:
        version = int(written["metadata"]["resourceVersion"])

        def seen() -> int:
            found = self.seen(self.name)
            return int(found["metadata"]["resourceVersion"]) if found is not None else 0

        await self._eventually(seen, lambda found: found >= version)

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.admin.get(REGISTRATIONS, self.name))["status"]
        return found

    async def running(self) -> tuple[str, str]:
        """Status and reason of the condition."""
        found = [item for item in (await self.status()).get("conditions", ()) if item["type"] == "Running"]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")


@pytest.fixture
async def desk(api_server: Any, eventually: Eventually) -> AsyncIterator[Desk]:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as admin,
        Faulty(ClusterConfig.load(api_server.mcm_kubeconfig)) as client,
    ):
        mirror = Informer(client, REGISTRATIONS)
        task = asyncio.create_task(mirror.run())
        made = Desk(admin, client, mirror, eventually)
        spec = {"controlPlaneRef": {"name": made.name}, "services": ["Controllers"]}
        await admin.create(REGISTRATIONS, {"metadata": {"name": made.name}, "spec": spec})
        await made.resolve()
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])
            with contextlib.suppress(NotFound):
                await admin.delete(REGISTRATIONS, made.name)
