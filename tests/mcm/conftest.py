"""Common fixtures of the tests of mcm."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kplane.provider import ClusterConfig
from kplane.provider.aio.backoff import Backoff
from kplane.workloads import Pace, ProcessRuntime

from .control_planes import one, running_tenants, tenants, two
from .gates import gate_to
from .instances_world import world
from .mcm_process import mcm, mcm_of, shared_mcm, started_mcm, state
from .registrations import fleet
from .reports_desk import desk

__all__ = [
    "desk",
    "fleet",
    "gate_to",
    "mcm",
    "mcm_of",
    "one",
    "running_tenants",
    "shared_mcm",
    "started_mcm",
    "state",
    "tenants",
    "two",
    "world",
]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    """A runtime for programs that a test writes into its directory, with short restart delays."""
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=Pace(restart_base=0.05)) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _retried_soon() -> Iterator[None]:
    """Shorten the delays of retries. A test that undoes its own `monkeypatch` does not undo these patches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kplane.mcm.instance.lifecycle._FIRST_RETRY_SECONDS", 0.05)
        for module in ("fleet", "source.debounce"):
            patch.setattr(
                f"kplane.mcm.{module}.Backoff", lambda **_: Backoff(initial_seconds=0.05, maximum_seconds=1.0)
            )
        yield


@pytest.fixture
def kubeconfig() -> str:
    """Kubeconfig of an API server that does not exist."""
    config = ClusterConfig(server="https://127.0.0.1:1", token="t")
    return json.dumps(config.to_kubeconfig())
