"""Liveness of an API server that runs as a process beside the operator."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest

from kplane.components import api_server as apiserver
from kplane.components.names import apiserver_name
from kplane.workloads import Pace, Probe, find_processes
from kplane.workloads.processes import runtime

pytestmark = pytest.mark.integration


@pytest.fixture
def quick_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a process as hanging after about 15 seconds instead of a minute. Probes are slow on a busy machine."""
    monkeypatch.setattr(runtime, "Pace", functools.partial(Pace, live_probe=1.0, live_failures=5))
    monkeypatch.setattr(apiserver, "Probe", functools.partial(Probe, timeout_seconds=2.0))


async def test_hanging_api_server_is_restarted(quick_liveness: None, own_field: Any) -> None:
    await own_field.create("ControlPlane", "stopped", deletionPolicy="Destroy")
    await own_field.becomes("ControlPlane", "stopped", "Reconciled")
    tenant = await own_field.tenant("stopped")
    directory = own_field.state / apiserver_name("stopped")
    # On a busy machine, the quick probes may have ended an API server that was not stopped.
    (pid,) = await own_field.eventually(lambda: find_processes(directory), lambda found: len(found) == 1)
    os.kill(pid, signal.SIGSTOP)
    await own_field.eventually(lambda: find_processes(directory), lambda found: found and pid not in found)
    await own_field.lets_in(tenant)
