"""The gateway as a process beside a management cluster: published control planes, and service after kills."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    GATEWAY_LEASE_LABEL,
    GATEWAY_NAMESPACE,
    HOLDS_ANNOTATION,
    UID_ANNOTATION,
    WRITES_HELD_UNTIL_ANNOTATION,
    gateway_secret_name,
)
from kplane.embedded.handle import Handle
from kplane.gateway import envoy_probe
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.pki.primitives import issue_client
from kplane.provider import ApiError, Client, ClusterConfig, NotFound
from kplane.provider.client.resources import LEASES, NAMESPACES, SECRETS
from tests.mcm.control_planes import Tenant, controllers_token

from .gateway_process import Process, gateway_process, write_certificate

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

_MASTERS = ("system:masters",)


@pytest.fixture
async def management(api_server: Handle) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig)) as client:
        yield client


@pytest.fixture
async def process(
    api_server: Handle, envoy: Path, tmp_path: Path, hold_port: Callable[[], int]
) -> AsyncIterator[Process]:
    async with gateway_process(api_server, tmp_path, envoy=envoy, hold_port=hold_port) as process:
        yield process


@pytest.fixture
async def acme(management: Client, running_tenants: dict[str, Tenant]) -> AsyncIterator[str]:
    """Publish tenant `one` as the operator does. Yields the name of its control plane."""
    name, tenant = f"acme-{os.getpid()}", running_tenants["one"]
    body = {"metadata": {"name": name}, "spec": {"mode": "Virtual"}}
    control_plane = await management.create(CONTROL_PLANES, body)
    await management.patch(
        CONTROL_PLANES,
        name,
        {"status": {"clusterPath": name, "phase": "Ready", "endpoint": tenant.server}},
        subresource="status",
    )
    proxy = issue_client(tenant.authorities.front_proxy, user="front-proxy-client")
    data = {
        "server": tenant.server.encode(),
        "ca.crt": tenant.authorities.serving_trust,
        "client-ca.crt": tenant.authorities.client_trust,
        "sa.pub": tenant.authorities.service_account_trust,
        "tls.crt": proxy.certificate,
        "tls.key": proxy.key,
    }
    metadata = {
        "name": gateway_secret_name(name),
        "namespace": GATEWAY_NAMESPACE,
        "labels": {CONTROL_PLANE_LABEL: name},
        "annotations": {UID_ANNOTATION: control_plane["metadata"]["uid"]},
    }
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    await management.create(SECRETS, {"metadata": metadata, "data": encoded})
    yield name
    for resource, namespace, object_name in (
        (SECRETS, GATEWAY_NAMESPACE, gateway_secret_name(name)),
        (CONTROL_PLANES, None, name),
    ):
        with contextlib.suppress(NotFound):
            await management.delete(resource, object_name, namespace=namespace)


async def _code(config: ClusterConfig) -> int:
    async with Client(config) as client:
        try:
            await client.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


def _holds(lease: dict[str, Any]) -> bool:
    renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
    return renewed + timedelta(seconds=lease["spec"]["leaseDurationSeconds"]) > datetime.now(UTC)


async def _is_held_and_says_so(management: Client, acme: str, eventually: Callable[..., Any]) -> None:
    uid = (await management.get(CONTROL_PLANES, acme))["metadata"]["uid"]
    secret = gateway_secret_name(acme)

    async def hold(until: str | None) -> None:
        annotations = {WRITES_HELD_UNTIL_ANNOTATION: until}
        await management.patch(SECRETS, secret, {"metadata": {"annotations": annotations}}, namespace=GATEWAY_NAMESPACE)

    async def holds() -> list[dict[str, str]]:
        leases = await management.list(LEASES, namespace=GATEWAY_NAMESPACE, label_selector=GATEWAY_LEASE_LABEL)
        # A killed gateway leaves its Lease behind, which counts until it expires.
        return [
            json.loads(lease["metadata"]["annotations"][HOLDS_ANNOTATION]) for lease in leases.items if _holds(lease)
        ]

    until = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    await hold(until)
    await eventually(holds, lambda found: found == [{uid: until}])
    await hold(None)
    await eventually(holds, lambda found: found == [{}])


async def test_gateway_serves_published_control_plane_after_kills(
    process: Process,
    acme: str,
    management: Client,
    running_tenants: dict[str, Tenant],
    eventually: Callable[..., Any],
) -> None:
    tenant = running_tenants["one"]
    async with Client(tenant.config) as direct:
        token = {"token": await controllers_token(direct, account=f"process-{process.port}")}
    pair = issue_client(tenant.authorities.client, user="admin", groups=_MASTERS)
    certificate = {"client_certificate": pair.certificate, "client_key": pair.key}
    # A gateway that was killed leaves a configuration with private keys behind.
    leftover = process.state / "envoy" / "candidate-killed.json"
    leftover.parent.mkdir(mode=0o700, parents=True)
    leftover.write_text("{}")

    process.start()
    await eventually(process.ready)
    assert not leftover.exists()
    for identity in (token, certificate):
        assert await _code(process.config(acme, **identity)) == 200
    metrics = (await process.ask("/metrics"))[1]
    assert f'kplane_gateway_requests_total{{control_plane="{acme}"}}' in metrics
    assert f'kplane_gateway_answers_total{{code="2xx",control_plane="{acme}"}} 2.0' in metrics
    assert "kplane_gateway_requests_over_rate_total 0.0" in metrics
    assert "kplane_gateway_held_control_planes 0.0" in metrics
    assert "kplane_gateway_control_planes 1.0" in metrics
    assert "kplane_gateway_waiting_requests 0.0" in metrics
    envoy = process.envoy
    await _is_held_and_says_so(management, acme, eventually)

    # Without its controller, Envoy still serves requests with tokens. Clients with certificates have to retry.
    process.end(signal.SIGKILL)
    assert await _code(process.config(acme, **token)) == 200
    assert await _code(process.config(acme, **certificate)) == 503
    process.start()
    await eventually(process.ready)
    assert await _code(process.config(acme, **certificate)) == 200
    assert process.envoy == envoy

    os.kill(envoy or 0, signal.SIGKILL)
    await eventually(lambda: process.envoy, lambda found: found not in (None, envoy))
    await eventually(process.ready)
    assert await _code(process.config(acme, **certificate)) == 200

    # The routes follow deletions in the management cluster.
    await management.delete(SECRETS, gateway_secret_name(acme), namespace=GATEWAY_NAMESPACE)
    await eventually(lambda: _code(process.config(acme, **token)), lambda code: code == 503)
    await management.delete(CONTROL_PLANES, acme)
    await eventually(lambda: _code(process.config(acme, **token)), lambda code: code == 401)
    assert process.end() == 0


@pytest.mark.slow
async def test_gateway_serves_last_configuration_without_management(
    process: Process,
    acme: str,
    running_tenants: dict[str, Tenant],
    eventually: Callable[..., Any],
    tmp_path: Path,
    api_server: Handle,
) -> None:
    async with Client(running_tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"alone-{process.port}")
    process.start()
    await eventually(process.ready)
    process.end(signal.SIGKILL)
    os.kill(process.envoy or 0, signal.SIGKILL)
    await eventually(lambda: process.envoy is None)
    port = api_server.server.rpartition(":")[2]
    unreachable = tmp_path / "unreachable"
    unreachable.write_text((tmp_path / "kubeconfig").read_text().replace(f":{port}", ":1"))
    process.start(kubeconfig=str(unreachable))
    await eventually(lambda: _code(process.config(acme, token=token)), lambda code: code == 200)
    assert not await process.ready()


@pytest.mark.slow
async def test_gateway_restarts_envoy_that_is_stopped(
    process: Process, acme: str, running_tenants: dict[str, Tenant], eventually: Callable[..., Any]
) -> None:
    async with Client(running_tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"stopped-{process.port}")
    process.start()
    await eventually(process.ready)
    envoy = process.envoy
    os.kill(envoy or 0, signal.SIGSTOP)
    await eventually(lambda: process.envoy, lambda found: found not in (None, envoy), timeout=120)
    await eventually(process.ready)
    assert await _code(process.config(acme, token=token)) == 200


@contextlib.contextmanager
def _envoy_of_its_own(program: Path, state: Path) -> Iterator[int]:
    """Run Envoy with the bootstrap file of the controller, as the second container of a pod does. Yields its PID."""
    command = [str(program), "--config-path", str(state / "envoy" / "bootstrap.json"), "--concurrency", "1"]
    with subprocess.Popen([*command, "--disable-hot-restart", "--log-level", "warning"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.slow
async def test_gateway_works_with_separately_started_envoy(
    process: Process, acme: str, envoy: Path, running_tenants: dict[str, Tenant], eventually: Callable[..., Any]
) -> None:
    async with Client(running_tenants["one"].config) as direct:
        token = await controllers_token(direct, account=f"apart-{process.port}")
    process.command.append("--no-run-envoy")
    process.start()
    await eventually(lambda: process.ask("/healthz"), lambda answer: answer[0] == 200)
    assert not await process.ready()
    for _ in range(2):
        with _envoy_of_its_own(envoy, process.state) as pid:
            await eventually(process.ready)
            assert await _code(process.config(acme, token=token)) == 200
            administration = [str(process.state / "envoy" / "run" / "envoy.sock")]
            assert await asyncio.to_thread(envoy_probe.main, administration) == 0
            os.kill(pid, signal.SIGSTOP)
            assert await asyncio.to_thread(envoy_probe.main, administration) == 1
            os.kill(pid, signal.SIGCONT)
        await eventually(process.ready, lambda ready: not ready)
    assert process.end() == 0


@pytest.mark.slow
async def test_gateway_loads_renewed_serving_certificate(
    process: Process, acme: str, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    process.start()
    await eventually(process.ready)
    # The files are replaced, as in a mounted Secret.
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    ca = write_certificate(fresh)
    for name in ("tls.key", "tls.crt"):
        shutil.copy(fresh / name, tmp_path / "certificates" / name)
    process.ca = ca
    await eventually(lambda: _code(process.config(acme)), lambda code: code in (401, 403))
