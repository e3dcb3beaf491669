"""A control plane stays awake while a client watches through the gateway, and falls asleep after that."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kplane.api.configuration import HostPort
from kplane.api.names import LAST_USED_ANNOTATION, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.hibernation import sleeper
from kplane.embedded.handle import Handle
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.gateway.main import run as run_gateway
from kplane.gateway.settings import Settings
from kplane.provider import Client, ClusterConfig, Informer
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import end_processes
from tests.controlplane_operator.integration.conftest import running_operator

from .gateway_process import gateway_kubeconfig, write_certificate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(300),
]

NAME = "dozer"
IDLE = timedelta(seconds=8)


@contextlib.asynccontextmanager
async def _running_gateway(
    cluster: Handle, state: Path, *, envoy: Path, serve: int, listen: int
) -> AsyncIterator[None]:
    """Run the gateway in this loop; it looks several times a second what is in use, and says so once a second."""
    kubeconfig = state / "kubeconfig"
    kubeconfig.write_bytes(gateway_kubeconfig(cluster))
    settings = Settings(
        kubeconfig=kubeconfig,
        state_dir=state / "gateway",
        envoy=envoy,
        certificate_dir=state,
        serve=HostPort("127.0.0.1", serve),
        listen=HostPort("127.0.0.1", listen),
        workers=1,
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run_gateway(settings, until=stop, usage_seconds=1.0))
        try:
            yield
        finally:
            stop.set()


@pytest.fixture
async def platform(
    api_server: Handle,
    envoy: Path,
    hold_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
    namespaces_go_at_once: Any,
) -> AsyncIterator[Client]:
    """The management cluster, with an operator and a gateway for whom eight seconds are long."""
    monkeypatch.setattr(sleeper, "idle_after", lambda _: IDLE)
    state = Path(tempfile.mkdtemp(prefix="kplane-idle-"))
    (state / "ca.crt").write_bytes(write_certificate(state))
    serve, settings = hold_port(), ClusterConfig.load(api_server.admin_kubeconfig)
    flags = {"gateway_url": f"https://127.0.0.1:{serve}", "gateway_ca": state / "ca.crt"}
    try:
        async with (
            namespaces_go_at_once(settings),
            Client(settings) as client,
            running_operator(api_server, state / "operator", port=hold_port(), snapshots=flags),
            _running_gateway(api_server, state, envoy=envoy, serve=serve, listen=hold_port()),
        ):
            yield client
            await client.delete(CONTROL_PLANES, NAME)
            await eventually(lambda: client.exists(CONTROL_PLANES, NAME), lambda found: not found, timeout=120.0)
    finally:
        await end_processes(state, grace_seconds=2.0)
        shutil.rmtree(state, ignore_errors=True)


async def test_an_open_watch_keeps_it_awake_until_it_ends(platform: Client, eventually: Callable[..., Any]) -> None:
    async def status() -> dict[str, Any]:
        return dict((await platform.get(CONTROL_PLANES, NAME)).get("status", {}))

    async def last_use() -> datetime | None:
        annotations = (await platform.get(CONTROL_PLANES, NAME))["metadata"].get("annotations", {})
        value = annotations.get(LAST_USED_ANNOTATION)
        return datetime.fromisoformat(value) if value is not None else None

    spec = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    await platform.create(CONTROL_PLANES, {"metadata": {"name": NAME}, "spec": spec})
    await eventually(status, lambda found: found.get("phase") == "Hibernated")
    namespace = management_namespace(NAME)
    published = await platform.get(SECRETS, kubeconfig_secret_name(NAME), namespace=namespace)
    through = ClusterConfig.from_kubeconfig(base64.b64decode(published["data"]["kubeconfig-external"]))

    async with Client(through) as tenant:
        watching = Informer(tenant, NAMESPACES)
        watching.start()
        await watching.wait_synced()
        first = await eventually(last_use, lambda found: found is not None)
        # It is in use for longer than it may be idle, though no request comes.
        last = await eventually(last_use, lambda found: found is not None and found > first + IDLE)
        assert (watching.state, dict(watching.restarts)) == ("ready", {})
        assert (await status())["phase"] == "Ready"
        await watching.aclose()
    found = await eventually(status, lambda found: found.get("phase") == "Hibernated")
    assert found["hibernation"]["reason"] == "Idle"
    assert datetime.fromisoformat(found["hibernation"]["since"]) >= last + IDLE
