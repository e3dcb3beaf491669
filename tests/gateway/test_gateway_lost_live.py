"""Changes whose API server is killed before its response. The response of the gateway lets no client retry them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.pki.primitives import issue_client
from kplane.provider import Client, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import find_processes

from .attacker import exchange, http1, statuses
from .conftest import Gateway

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(300),
]

_CHANGES = 10
_CHANGING = "cluster.uid-one/front-proxy-changes.upstream_rq_active"


async def test_change_gets_504_and_no_retry_when_api_server_is_killed(
    gateway: Gateway, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Etcd is stopped until the API server is dead. Etcd then processes the requests that it has received."""
    tenant = gateway.tenants["one"]
    certificate = tmp_path / "admin.pem"
    admin = issue_client(tenant.authorities.client, user="admin", groups=("system:masters",))
    certificate.write_bytes(admin.certificate + admin.key)
    prefix = f"once-{gateway.serving.port}-"
    body = json.dumps({"metadata": {"generateName": prefix}}).encode()
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    path = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"
    request = http1(path, *headers, method="POST", body=body)

    async def create() -> list[bytes]:
        """Create an object as client-go does: retry after a response with `Retry-After`, here a single time."""
        options: Any = {"ca": gateway.ca, "certificate": certificate}
        answers = [await exchange(gateway.serving.port, request, **options)]
        if b"retry-after" in answers[0].lower():
            answers.append(await exchange(gateway.serving.port, request, **options))
        return answers

    async def in_flight() -> int:
        return (await gateway.plane.numbers()).get(_CHANGING, 0)

    async def made() -> int | None:
        async with Client(tenant.config) as direct:
            try:
                config_maps = (await direct.list(CONFIG_MAPS, namespace="default")).items
            except ProviderError:
                return None
        return sum(config_map["metadata"]["name"].startswith(prefix) for config_map in config_maps)

    (etcd,), (api_server,) = find_processes(tenant.directory.parent / "etcd"), find_processes(tenant.directory)
    os.kill(etcd, signal.SIGSTOP)
    try:
        creating = [asyncio.create_task(create()) for _ in range(_CHANGES)]
        await eventually(in_flight, lambda count: count == _CHANGES)
        os.kill(api_server, signal.SIGKILL)
        outcomes = await asyncio.gather(*creating)
    finally:
        os.kill(etcd, signal.SIGCONT)
    count = await eventually(made, lambda count: count is not None, timeout=60.0)
    assert [[statuses(answer)[0] for answer in answers] for answers in outcomes] == [[504]] * _CHANGES
    assert count <= _CHANGES
