"""The operator as a process: log and clean exit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest

from benchmarks.surroundings import open_namespace
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import SECRETS
from kplane.workloads import end_processes

pytestmark = pytest.mark.integration


@pytest.fixture
async def state() -> AsyncIterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-operator-"))
    yield directory
    await end_processes(directory, grace_seconds=2.0)
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def started(
    handle: Handle, state: Path, eventually: Any, *, port: int, log: IO[bytes] | int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the operator as a process. Kill the process at the end if it still runs."""
    listen = f"127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kplane.controlplane_operator.main",
        f"--kubeconfig={handle.operator_kubeconfig}",
        "--runtime=process",
        f"--state-dir={state}",
        *(f"--programs-dir={directory}" for directory in handle.programs),
        f"--shared-etcd-endpoint={handle.tenants_etcd.endpoint}",
        f"--shared-etcd-credentials={handle.tenants_etcd_credentials}",
        f"--listen={listen}",
        stderr=log,
    )

    async def works() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"http://{listen}/readyz") as answer:
            assert answer.status == 200
        async with aiohttp.ClientSession() as session, session.get(f"http://{listen}/metrics") as answer:
            # The operator is ready a moment before it reconciles, and exposes this metric once it reconciles.
            return 'kplane_control_planes{phase="Ready"}' in await answer.text()

    try:
        await eventually(works, timeout=120.0)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_log_lines_about_an_object_have_its_name(
    api_server: Handle, state: Path, tmp_path: Path, eventually: Any, hold_port: Callable[[], int]
) -> None:
    log = tmp_path / "log"

    def said() -> dict[str, dict[str, Any]]:
        """Return the lines of the log about the control plane by reason."""
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return {line["reason"]: line for line in lines if line.get("object") == "ControlPlane/logged"}

    config = ClusterConfig.load(api_server.admin_kubeconfig)
    kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
    reference = {"name": "logged", "namespace": "default"}
    labels = {ALLOW_ENDPOINT_LABEL: "true"}
    door = {"endpoint": config.server, "credentialsSecretRef": reference}
    spec = {"mode": "Dedicated", "endpointRef": {"name": "logged"}, "classRef": {"name": "absent"}}
    async with contextlib.AsyncExitStack() as stack:
        written = stack.enter_context(log.open("wb"))
        process = await stack.enter_async_context(started(api_server, state, eventually, port=hold_port(), log=written))
        client = await stack.enter_async_context(Client(config, field_manager="kplane"))
        await open_namespace(client)
        await client.apply(
            SECRETS, {"metadata": {**reference, "labels": labels}, "data": {"kubeconfig": kubeconfig}}, force=True
        )
        await client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "logged"}, "spec": door})
        stack.push_async_callback(client.delete, CONTROL_PLANE_ENDPOINTS, "logged")
        await client.create(CONTROL_PLANES, {"metadata": {"name": "logged"}, "spec": spec})
        entry = await eventually(lambda: said().get("ClassNotFound"))
        assert entry["level"] == "warning"
        assert "ControlPlaneClass absent" in entry["message"]
        await client.patch(CONTROL_PLANES, "logged", {"spec": {"classRef": None}})
        assert (await eventually(lambda: said().get("Reconciled"), timeout=120.0))["level"] == "info"
        await client.delete(CONTROL_PLANES, "logged")
        await eventually(lambda: said().get("RevokingCredentials"), timeout=120.0)

        async def gone() -> bool:
            try:
                await client.get(CONTROL_PLANES, "logged")
            except NotFound:
                return True
            return False

        await eventually(gone, timeout=120.0)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120.0):
            assert await process.wait() == 0
