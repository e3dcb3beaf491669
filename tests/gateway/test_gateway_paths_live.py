"""Envoy routes paths as the model of `path_model.py` does, which `test_gateway_paths.py` checks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.routes import KeyPair, Route
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.workloads import ProcessRuntime

from .attacker import exchange, http1, statuses
from .fleet import CLIENT_CA, no_waker, route
from .path_model import BEGINNINGS, PIECES, TENANTS, routed

pytestmark = pytest.mark.integration

_PATHS = 1500


@pytest.mark.slow
async def test_envoy_routes_path_to_control_plane_of_model(
    envoy: Path, tmp_path: Path, hold_port: Callable[[], int]
) -> None:
    """Each control plane is absent, so that the 503 response names the control plane to clients that it had."""
    generator = random.Random(20261122)
    paths = {
        generator.choice(BEGINNINGS) + "".join(generator.choices(PIECES, k=generator.randrange(8)))
        for _ in range(_PATHS)
    }
    routes = [Route(key=f"uid-{name}", cluster_path=name, upstream=None, why_absent=name) for name in TENANTS]
    authority = create_authority("gateway")
    pair = issue_serving(authority, common_name="gateway", hosts=["localhost"])
    serving = Serving(host="127.0.0.1", port=hold_port(), certificate=KeyPair(pair.certificate, pair.key))
    directory = tmp_path / "gateway"
    directory.mkdir(mode=0o700)
    user = issue_client(CLIENT_CA, user="jane")
    user_file = tmp_path / "user.pem"
    user_file.write_bytes(user.certificate + user.key)
    names: dict[str, str | None] = {}
    slots = asyncio.Semaphore(16)

    async def ask(path: str) -> None:
        async with slots:
            answer = await exchange(serving.port, http1(path), ca=authority.certificate, certificate=user_file)
        (code,) = statuses(answer)
        assert code in {400, 401, 404, 503}, answer
        names[path] = json.loads(answer.partition(b"\r\n\r\n")[2])["message"] if code == 503 else None

    async with ProcessRuntime(tmp_path / "runtime", programs=[]) as runtime:
        validate = EnvoyValidator(envoy, directory=directory)
        plane = DataPlane(directory, validate=validate, program=envoy, runtime=runtime, waker=no_waker(), workers=1)
        async with plane.running():
            try:
                # The gateway verifies credentials by the last API server that each control plane had.
                await plane.apply([route(name) for name in TENANTS], serving=serving)
                await plane.apply(routes, serving=serving)
                async with asyncio.TaskGroup() as group:
                    for path in paths:
                        group.create_task(ask(path))
            finally:
                await plane.stop()
    # Envoy refuses a path with a fragment before it matches routes.
    expected = {path: None if "#" in path else routed(path) for path in paths}
    assert {path: names[path] for path in paths if names[path] != expected[path]} == {}
    assert sum(name is not None for name in names.values()) > 50
