"""The end of mcm as a process, with which its instances end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.provider import Client
from kplane.provider.providers.kplane.registration import REGISTRATIONS

from .control_planes import works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any


@pytest.fixture
def mcm(mcm_of: Any, api_server: Any) -> Any:
    return mcm_of(api_server.mcm_kubeconfig, apart=True)


async def test_instances_die_with_a_killed_mcm_and_the_next_restarts_them(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """Two of the registrations have the same control plane, with separate instance Leases."""
    mcm.start()
    kept_name = await fleet.register("kept", tenants["one"].controllers_secret(), server=tenants["one"].server)
    deleted_name = await fleet.register("deleted", tenants["two"].controllers_secret(), server=tenants["two"].server)
    left_name = await fleet.register("left", tenants["two"].controllers_secret(), server=tenants["two"].server)
    old_pids = {(await state(name, "Ready"))["pid"] for name in (kept_name, deleted_name, left_name)}
    running = ("True", "InstanceRunning", fleet.uid_at(tenants["two"].server))
    await eventually(lambda: fleet.told("left"), lambda told: told == running)
    assert await asyncio.to_thread(mcm.end, signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: not mcm.instances())
    await fleet.client.delete(REGISTRATIONS, deleted_name)
    await fleet.withdraw("left")
    assert await fleet.told("left") == running

    mcm.start()
    summary = await state(kept_name, "Ready")
    assert summary["pid"] not in old_pids
    assert mcm.directories() == [component_name(kept_name)]
    await eventually(lambda: fleet.told("left"), lambda told: told == ("False", "Ended", ""))
    await works(one, eventually)


async def test_sigterm_ends_every_instance(mcm: Any, fleet: Fleet, tenants: Any, state: Any) -> None:
    mcm.start()
    for stem in ("one", "two"):
        await fleet.register(stem, tenants[stem].controllers_secret(), server=tenants[stem].server)
    for stem in ("one", "two"):
        await state(fleet.name(stem), "Ready")
    assert len(await asyncio.to_thread(mcm.instances)) == 2
    assert await asyncio.to_thread(mcm.end) == 0
    assert not mcm.instances()
    assert not mcm.directories()
    assert {await fleet.told(stem) for stem in ("one", "two")} == {("False", "Ended", "")}
