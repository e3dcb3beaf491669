"""Envoy reads paths as the model of `test_gateway_paths.py` does."""

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
from kplane.pki.primitives import create_authority, issue_serving
from kplane.workloads import ProcessRuntime

from .attacker import exchange, http1, statuses
from .fleet import no_waker
from .path_model import BEGINNINGS, PIECES, TENANTS, routed

pytestmark = pytest.mark.integration

_PATHS = 1500


@pytest.mark.slow
async def test_envoy_routes_as_the_model_does(envoy: Path, tmp_path: Path, hold_port: Callable[[], int]) -> None:
    """Each control plane is one that is absent, so that the answer names it."""
    chosen = random.Random(20261122)
    paths = {chosen.choice(BEGINNINGS) + "".join(chosen.choices(PIECES, k=chosen.randrange(8))) for _ in range(_PATHS)}
    served = [Route(key=f"uid-{name}", cluster_path=name, upstream=None, why_absent=name) for name in TENANTS]
    authority = create_authority("gateway")
    pair = issue_serving(authority, common_name="gateway", hosts=["localhost"])
    serving = Serving(host="127.0.0.1", port=hold_port(), certificate=KeyPair(pair.certificate, pair.key))
    directory = tmp_path / "gateway"
    directory.mkdir(mode=0o700)
    found: dict[str, str | None] = {}
    turns = asyncio.Semaphore(16)

    async def ask(path: str) -> None:
        async with turns:
            answer = await exchange(serving.port, http1(path, "Authorization: Bearer x"), ca=authority.certificate)
        (code,) = statuses(answer)
        assert code in {400, 401, 404, 503}, answer
        found[path] = json.loads(answer.partition(b"\r\n\r\n")[2])["message"] if code == 503 else None

    async with ProcessRuntime(tmp_path / "runtime", programs=[]) as runtime:
        validate = EnvoyValidator(envoy, directory=directory)
        plane = DataPlane(directory, validate=validate, program=envoy, runtime=runtime, waker=no_waker(), workers=1)
        async with plane.running():
            try:
                await plane.apply(served, serving=serving)
                async with asyncio.TaskGroup() as group:
                    for path in paths:
                        group.create_task(ask(path))
            finally:
                await plane.stop()
    # Envoy refuses a fragment before it looks for a route.
    expected = {path: None if "#" in path else routed(path) for path in paths}
    assert {path: found[path] for path in paths if found[path] != expected[path]} == {}
    assert sum(name is not None for name in found.values()) > 50
