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
    """The management cluster, with an operator and a gateway for whom 15 seconds are long."""
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
    """Make a control plane that sleeps, and return how its users reach it."""
    spec |= {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
    await eventually(partial(_status, client, name), lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    published = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
    return ClusterConfig.from_kubeconfig(base64.b64decode(published["data"]["kubeconfig-external"]))


def _awake_since(status: dict[str, Any]) -> datetime:
    """Return when a control plane woke last."""
    hibernated = next(each for each in status["conditions"] if each["type"] == "Hibernated")
    return datetime.fromisoformat(hibernated["lastTransitionTime"])


async def _code(config: ClusterConfig, path: str) -> int:
    """Send one request by a connection of its own; returns 0 if there was no answer."""
    try:
        async with Client(config, timeout_seconds=60.0) as client:
            await client.request("GET", path)
    except ApiError as error:
        return error.status
    except Unreachable:
        return 0
    return 200


async def test_an_open_watch_keeps_it_awake_until_it_ends(platform: Client, eventually: Callable[..., Any]) -> None:
    status, last_use = partial(_status, platform, NAME), partial(_last_use, platform, NAME)
    through = await _sleeper(platform, NAME, eventually)

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
    found = await eventually(status, lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    assert found["hibernation"]["reason"] == "Idle"
    assert datetime.fromisoformat(found["hibernation"]["since"]) >= last + IDLE


async def test_by_host_name_users_keep_it_awake_and_strangers_do_not(
    platform: Client, eventually: Callable[..., Any]
) -> None:
    status, last_use = partial(_status, platform, NAMED), partial(_last_use, platform, NAMED)
    through = await _sleeper(platform, NAMED, eventually, endpointStyle="HostName")
    assert through.tls_server_name == f"{NAMED}.localhost"

    # Requests of a user keep it awake for longer than it may be idle.
    await eventually(partial(_code, through, NAMESPACES.path()), lambda code: code == 200, timeout=150.0)
    await eventually(status, lambda found: found.get("phase") == "Ready")
    begun = datetime.now(UTC)
    while (used := await last_use()) is None or used < begun + 2 * IDLE:
        assert await _code(through, NAMESPACES.path()) == 200
        assert (await status()).get("hibernation") is None
        await asyncio.sleep(0.2)
    # The user leaves.
    await eventually(status, lambda found: found.get("phase") == "Hibernated", timeout=150.0)
    used = await last_use()

    # A stranger knows the name, wakes it, and keeps connections open. That shows no use.
    nobody = dataclasses.replace(through, token=None)
    worthless = dataclasses.replace(through, token="worthless")
    allowed_to_all = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
    answered: set[int] = set()
    async with Client(nobody) as open_connection:

        async def strangers_come() -> dict[str, Any]:
            for config, path in ((nobody, allowed_to_all), (worthless, NAMESPACES.path()), (nobody, NAMESPACES.path())):
                answered.add(await _code(config, path))
            with contextlib.suppress(ApiError, Unreachable):
                await open_connection.probe("/readyz")
            return await status()

        await eventually(strangers_come, lambda found: found.get("phase") == "Ready" and 401 in answered, timeout=150.0)
        woken = _awake_since(await status())
        found = await eventually(strangers_come, lambda found: "hibernation" in found, timeout=150.0)
    assert found["hibernation"]["reason"] == "Idle"
    assert datetime.fromisoformat(found["hibernation"]["since"]) >= woken + IDLE
    assert await last_use() == used
    assert answered >= {401, 403}
