"""A control plane stays awake while users work through the gateway, and falls asleep after that."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kplane.api.configuration import HostPort
from kplane.api.names import LAST_USED_ANNOTATION, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.controlplanes import credential_probes
from kplane.controlplane_operator.hibernation import host_name_use, sleeper
from kplane.embedded.handle import Handle
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.gateway.main import run as run_gateway
from kplane.gateway.settings import Settings
from kplane.provider import ApiError, Client, ClusterConfig, Informer, NotFound, Unreachable
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import end_processes
from tests.controlplane_operator.integration.conftest import running_operator

from .gateway_process import gateway_kubeconfig, write_certificate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(600),
]

NAME, NAMED = "dozer", "napper"
IDLE = timedelta(seconds=15)


@contextlib.asynccontextmanager
async def _running_gateway(
    cluster: Handle, state: Path, *, envoy: Path, serve: int, listen: int
) -> AsyncIterator[None]:
    """Run the gateway in this event loop. Counters are read several times a second, and uses written once a second."""
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
    """Management cluster with an operator and a gateway. Control planes sleep after 15 idle seconds."""
    monkeypatch.setattr(sleeper, "idle_after", lambda _: IDLE)
    monkeypatch.setattr(sleeper, "IN_USE_AFTER_REQUEST", IDLE)
    monkeypatch.setattr(host_name_use, "_LOOKS_APART", timedelta(seconds=1))
    monkeypatch.setattr(credential_probes, "_PERIOD_SECONDS", 2.0)
    state = Path(tempfile.mkdtemp(prefix="kplane-idle-"))
    (state / "ca.crt").write_bytes(write_certificate(state))
    serve, settings = hold_port(), ClusterConfig.load(api_server.admin_kubeconfig)
    flags = {"gateway_url": f"https://127.0.0.1:{serve}", "gateway_ca": state / "ca.crt", "gateway_domain": "localhost"}
    try:
        async with (
            namespaces_go_at_once(settings),
            Client(settings) as client,
            running_operator(api_server, state / "operator", port=hold_port(), snapshots=flags),
            _running_gateway(api_server, state, envoy=envoy, serve=serve, listen=hold_port()),
        ):
            yield client
            for name in (NAME, NAMED):
                with contextlib.suppress(NotFound):
                    await client.delete(CONTROL_PLANES, name)
            for name in (NAME, NAMED):
                await eventually(partial(client.exists, CONTROL_PLANES, name), lambda found: not found, timeout=120.0)
    finally:
        await end_processes(state, grace_seconds=2.0)
        shutil.rmtree(state, ignore_errors=True)


async def _status(client: Client, name: str) -> dict[str, Any]:
    return dict((await client.get(CONTROL_PLANES, name)).get("status", {}))


async def _last_use(client: Client, name: str) -> datetime | None:
    value = (await client.get(CONTROL_PLANES, name))["metadata"].get("annotations", {}).get(LAST_USED_ANNOTATION)
    return datetime.fromisoformat(value) if value is not None else None


async def _sleeper(client: Client, name: str, eventually: Callable[..., Any], **spec: Any) -> ClusterConfig:
    """Create a control plane, wait until it sleeps, and return the connection settings of its users."""
    spec |= {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
    await eventually(partial(_status, client, name), lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
    return ClusterConfig.from_kubeconfig(base64.b64decode(secret["data"]["kubeconfig-external"]))


def _awake_since(status: dict[str, Any]) -> datetime:
    """Return the time of the last wake-up of a control plane."""
    condition = next(candidate for candidate in status["conditions"] if candidate["type"] == "Hibernated")
    return datetime.fromisoformat(condition["lastTransitionTime"])


async def _code(config: ClusterConfig, path: str) -> int:
    """Send a request on a new connection. Returns the status code, or 0 without a response."""
    try:
        async with Client(config, timeout_seconds=60.0) as client:
            await client.request("GET", path)
    except ApiError as error:
        return error.status
    except Unreachable:
        return 0
    return 200


async def test_open_watch_keeps_control_plane_awake_until_watch_ends(
    platform: Client, eventually: Callable[..., Any]
) -> None:
    status, last_use = partial(_status, platform, NAME), partial(_last_use, platform, NAME)
    user_config = await _sleeper(platform, NAME, eventually)

    async with Client(user_config) as tenant:
        informer = Informer(tenant, NAMESPACES)
        informer.start()
        await informer.wait_synced()
        first = await eventually(last_use, lambda found: found is not None)
        # The watch counts as use for longer than the idle time, although no request is sent.
        last = await eventually(last_use, lambda found: found is not None and found > first + IDLE)
        assert (informer.state, dict(informer.restarts)) == ("ready", {})
        assert (await status())["phase"] == "Ready"
        await informer.aclose()
    sleep_status = await eventually(status, lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    assert sleep_status["hibernation"]["reason"] == "Idle"
    assert datetime.fromisoformat(sleep_status["hibernation"]["since"]) >= last + IDLE


async def test_host_name_requests_of_users_only_keep_control_plane_awake(
    platform: Client, eventually: Callable[..., Any]
) -> None:
    status, last_use = partial(_status, platform, NAMED), partial(_last_use, platform, NAMED)
    user_config = await _sleeper(platform, NAMED, eventually, endpointStyle="HostName")
    assert user_config.tls_server_name == f"{NAMED}.localhost"

    # Requests of a user keep the control plane awake beyond the idle time.
    await eventually(partial(_code, user_config, NAMESPACES.path()), lambda code: code == 200, timeout=150.0)
    await eventually(status, lambda found: found.get("phase") == "Ready")
    begun = datetime.now(UTC)
    while (use_time := await last_use()) is None or use_time < begun + 2 * IDLE:
        assert await _code(user_config, NAMESPACES.path()) == 200
        assert (await status()).get("hibernation") is None
        await asyncio.sleep(0.2)
    # The user leaves.
    await eventually(status, lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    use_time = await last_use()

    # A client without valid credentials wakes the control plane and keeps connections open. That is no use. Such a wake
    # ends after the idle time, which is shorter than three minutes here.
    anonymous_config = dataclasses.replace(user_config, token=None)
    invalid_config = dataclasses.replace(user_config, token="worthless")
    allowed_to_all = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
    codes: set[int] = set()
    async with Client(anonymous_config) as open_connection:

        async def strangers_come() -> dict[str, Any]:
            for config, path in (
                (anonymous_config, allowed_to_all),
                (invalid_config, NAMESPACES.path()),
                (anonymous_config, NAMESPACES.path()),
            ):
                codes.add(await _code(config, path))
            with contextlib.suppress(ApiError, Unreachable):
                await open_connection.probe("/readyz")
            return await status()

        await eventually(strangers_come, lambda found: found.get("phase") == "Ready" and 401 in codes, timeout=150.0)
        woken = _awake_since(await status())
        sleep_status = await eventually(strangers_come, lambda found: "hibernation" in found, timeout=150.0)
    assert sleep_status["hibernation"]["reason"] == "Idle"
    assert woken + IDLE <= datetime.fromisoformat(sleep_status["hibernation"]["since"]) < woken + timedelta(minutes=3)
    assert await last_use() == use_time
    assert codes >= {401, 403}
