"""Admission webhooks of a tenant on the Leases of its controllers: a slow one ends nothing, and a bad one is named."""

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
"""Its renew deadline is 18 s, half of which is more than the webhook takes."""
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
    found = Backend()
    async with found.running():
        yield found


@contextlib.asynccontextmanager
async def guarded(client: Client, backend: Backend, *, policy: str) -> AsyncIterator[None]:
    """Within, each write of a Lease waits for a webhook that does not answer."""
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
async def test_slow_webhook_on_leases_ends_no_instance_and_a_failing_one_is_named(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, two: Client, backend: Backend, eventually: Eventually
) -> None:
    mcm = mcm_of(api_server.mcm_kubeconfig, quick=True, lease_seconds=_LEASE_SECONDS)
    mcm.start()
    tenant = tenants["two"]
    await fleet.register("guarded", tenant.controllers_secret(), server=tenant.server)
    name = fleet.name("guarded")

    async def pid() -> Any:
        found = (await asyncio.to_thread(mcm.clusters)).get(name, {})
        return found.get("pid") if found.get("state") == "Ready" else None

    async def renewed() -> str:
        lease = await two.get(LEASES, "kube-controller-manager", namespace="kube-system")
        return str(lease["spec"]["renewTime"])

    first = await eventually(pid, timeout=_PATIENCE)
    async with guarded(two, backend, policy="Ignore"):
        await eventually(lambda: backend.accepted, timeout=_PATIENCE)
        # Together these writes take longer than the Lease lasts.
        seen = {await renewed()}
        for _ in range(_LEASE_SECONDS // _WEBHOOK_SECONDS + 1):
            seen.add(await eventually(renewed, lambda found: found not in seen, timeout=_PATIENCE))
        assert await pid() == first
        assert (await fleet.condition("guarded"))["status"] == "True"
    async with guarded(two, backend, policy="Fail"):
        refused = await eventually(
            lambda: fleet.condition("guarded"), lambda found: found["reason"] == "WebhookRefused", timeout=_PATIENCE
        )
        assert f"webhook '{_NAME}' of ValidatingWebhookConfiguration {_NAME} (Fail, 7 s)" in refused["message"]
        assert f"kubectl delete validatingwebhookconfiguration {_NAME}" in refused["message"]
        assert not await asyncio.to_thread(mcm.instances)
    assert await eventually(pid, timeout=_PATIENCE) != first


@pytest.mark.slow
async def test_instance_that_starts_behind_a_slow_webhook_says_what_it_waits_for(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, two: Client, backend: Backend, eventually: Eventually
) -> None:
    """As after a move: the Lease is there, and each write of it takes long."""
    mcm = mcm_of(api_server.mcm_kubeconfig, quick=True, lease_seconds=_LEASE_SECONDS)
    tenant, reasons = tenants["two"], list[str]()

    async def condition() -> dict[str, Any]:
        found: dict[str, Any] = await fleet.condition("guarded")
        if (reason := found.get("reason", "")) not in reasons:
            reasons.append(reason)
        return found

    async with guarded(two, backend, policy="Ignore"):
        mcm.start()
        await fleet.register("guarded", tenant.controllers_secret(), server=tenant.server)
        said = await eventually(condition, lambda found: found.get("reason") == "WebhookRefused", timeout=_PATIENCE)
        assert f"of ValidatingWebhookConfiguration {_NAME} (Ignore, 7 s)" in said["message"]
        await eventually(condition, lambda found: found.get("status") == "True", timeout=_PATIENCE)
    assert "APIServerUnreachable" not in reasons
