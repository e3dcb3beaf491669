"""Admission webhooks of a tenant on Leases: a slow webhook ends no instance, and a failing webhook is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.provider import Client, NotFound
from kplane.provider.client.resources import LEASES, VALIDATING_WEBHOOK_CONFIGURATIONS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(400)]

Eventually = Callable[..., Any]

_NAME = "guard.example.com"
_WEBHOOK_SECONDS = 7
_LEASE_SECONDS = 24
"""Duration of the instance Lease. Half of its renew deadline of 18 s is more than the webhook takes."""
_PATIENCE = 120.0


class Backend:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self.accepted = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted += 1
        while await reader.read(65536):
            pass

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    backend = Backend()
    async with backend.running():
        yield backend


@contextlib.asynccontextmanager
async def guarded(client: Client, backend: Backend, *, policy: str) -> AsyncIterator[None]:
    """Make each write of a Lease wait for a webhook that does not answer."""
    webhook = {
        "name": _NAME,
        "failurePolicy": policy,
        "timeoutSeconds": _WEBHOOK_SECONDS,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": f"https://127.0.0.1:{backend.port}/validate"},
        "rules": [
            {
                "apiGroups": ["coordination.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["leases"],
            }
        ],
    }
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": _NAME}, "webhooks": [webhook]})
    try:
        yield
    finally:
        with contextlib.suppress(NotFound):
            await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, _NAME)


@pytest.mark.slow
async def test_slow_webhook_ends_no_instance_and_failing_webhook_is_named(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, two: Client, backend: Backend, eventually: Eventually
) -> None:
    mcm = mcm_of(api_server.mcm_kubeconfig, quick=True, lease_seconds=_LEASE_SECONDS)
    mcm.start()
    tenant = tenants["two"]
    await fleet.register("guarded", tenant.controllers_secret(), server=tenant.server)
    name = fleet.name("guarded")

    async def pid() -> Any:
        cluster = (await asyncio.to_thread(mcm.clusters)).get(name, {})
        return cluster.get("pid") if cluster.get("state") == "Ready" else None

    async def renewed() -> str:
        lease = await two.get(LEASES, "kube-controller-manager", namespace="kube-system")
        return str(lease["spec"]["renewTime"])

    first_pid = await eventually(pid, timeout=_PATIENCE)
    async with guarded(two, backend, policy="Ignore"):
        await eventually(lambda: backend.accepted, timeout=_PATIENCE)
        # Together these writes take longer than the Lease lasts.
        renew_times = {await renewed()}
        for _ in range(_LEASE_SECONDS // _WEBHOOK_SECONDS + 1):
            renew_times.add(await eventually(renewed, lambda found: found not in renew_times, timeout=_PATIENCE))
        assert await pid() == first_pid
        assert (await fleet.condition("guarded"))["status"] == "True"
    async with guarded(two, backend, policy="Fail"):
        condition = await eventually(
            lambda: fleet.condition("guarded"), lambda found: found["reason"] == "WebhookRefused", timeout=_PATIENCE
        )
        assert f"webhook '{_NAME}' of ValidatingWebhookConfiguration {_NAME} (Fail, 7 s)" in condition["message"]
        assert f"kubectl delete validatingwebhookconfiguration {_NAME}" in condition["message"]
        assert not await asyncio.to_thread(mcm.instances)
    assert await eventually(pid, timeout=_PATIENCE) != first_pid


@pytest.mark.slow
async def test_start_behind_a_slow_webhook_reports_the_webhook(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, two: Client, backend: Backend, eventually: Eventually
) -> None:
    """As after a move, the Lease exists, and each write to it takes long."""
    mcm = mcm_of(api_server.mcm_kubeconfig, quick=True, lease_seconds=_LEASE_SECONDS)
    tenant, reasons = tenants["two"], list[str]()

    async def condition() -> dict[str, Any]:
        running: dict[str, Any] = await fleet.condition("guarded")
        if (reason := running.get("reason", "")) not in reasons:
            reasons.append(reason)
        return running

    async with guarded(two, backend, policy="Ignore"):
        mcm.start()
        await fleet.register("guarded", tenant.controllers_secret(), server=tenant.server)
        refusal = await eventually(condition, lambda found: found.get("reason") == "WebhookRefused", timeout=_PATIENCE)
        assert f"of ValidatingWebhookConfiguration {_NAME} (Ignore, 7 s)" in refusal["message"]
        await eventually(condition, lambda found: found.get("status") == "True", timeout=_PATIENCE)
    assert "APIServerUnreachable" not in reasons
