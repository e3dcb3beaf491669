"""Migrations that do not complete: only planned, aborted, rolled back, or ended by deletion."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from kplane.api import StartPolicy
from kplane.api.control_plane import VirtualSpec
from kplane.binaries.programs import Binaries
from kplane.client import ControlPlanes
from kplane.components.names import apiserver_name, etcd_name
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.data import Client, Credentials
from kplane.embedded import components
from kplane.provider import Client as TenantClient
from kplane.provider.client.resources import CLUSTER_ROLES, CONFIG_MAPS, NAMESPACES
from kplane.workloads import find_processes

from .begun_list import BegunList
from .ledger import Ledger
from .ledger_kinds import WIDGETS
from .moving import Mover, moving_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = "wanderer"
SIZE = 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries, name=NAME, eventually=eventually, namespaces_go_at_once=namespaces_go_at_once, window="10m"
    ) as mover:
        yield mover


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(mover: Mover) -> Ledger:
    ledger = Ledger(mover.config, size=SIZE)
    await ledger.fill()
    return ledger


def is_there(mover: Mover, *, slot: int) -> bool:
    """Tell whether processes or files of a home exist."""
    names = (apiserver_name(NAME, slot=slot), etcd_name(NAME, slot=slot))
    directories = [mover.cluster.handle.operator_directory / name for name in names]
    return any(directory.exists() or find_processes(directory) for directory in directories)


async def keys_below(mover: Mover, prefix: str) -> int:
    """Count keys in the shared etcd."""
    etcd = mover.cluster.handle.tenants_etcd
    files = Credentials.in_directory(mover.cluster.handle.tenants_etcd_credentials)
    async with Client(etcd.endpoint, credentials=files) as client:
        return await client.count(prefix)


async def versions(mover: Mover) -> dict[tuple[str, str], int]:
    """Return the resourceVersion of each object that a client reads, by resource and name."""
    version_by_object = {}
    async with TenantClient(mover.config, field_manager="kplane") as tenant:
        for resource in (WIDGETS, NAMESPACES, CONFIG_MAPS, CLUSTER_ROLES):
            for item in (await tenant.list(resource)).items:
                metadata = item["metadata"]
                name = f"{metadata.get('namespace', '')}/{metadata['name']}"
                version_by_object[resource.kind, name] = int(metadata["resourceVersion"])
    return version_by_object


async def begin_list(mover: Mover) -> BegunList:
    """Read the first page of a list, behind the gateway."""
    async with TenantClient(mover.config, field_manager="kplane") as tenant:
        return await BegunList.of(tenant)


async def is_as_before(mover: Mover, ledger: Ledger) -> None:
    """Wait until the control plane is in its former home, without files, processes or keys of another home."""
    await mover.until(lambda: not mover.migration)
    assert mover.status["home"] == {"mode": "Virtual", "slot": 0}
    await mover.eventually(lambda: not is_there(mover, slot=1))
    await mover.eventually(lambda: keys_below(mover, f"{key_prefix(NAME)}.follow/"), lambda found: found == 0)
    await mover.controllers_work()
    assert ledger.errors == []


async def test_plan_alone_reports_keys_and_keeps_the_home(mover: Mover, ledger: Ledger) -> None:
    async with ledger.written():
        await mover.patch(mode="Dedicated", migration={"plan": True})
        await mover.until(lambda: "plan" in mover.migration)
        assert mover.step is None
        assert mover.migration["plan"]["blockers"] == []
        assert mover.migration["plan"]["keys"] > SIZE
        assert mover.migration["plan"]["holdMilliseconds"] < 5000
        assert not is_there(mover, slot=1)
        await mover.patch(mode="Virtual", migration={"plan": False})
        await is_as_before(mover, ledger)
    assert await ledger.wrong() == []


async def test_plan_of_sleeper_does_not_wake_it(mover: Mover) -> None:
    control_planes = ControlPlanes(mover.cluster.client)
    # The start policy is part of the spec of mode Virtual, which a plan for mode Dedicated ignores.
    await mover.patch(virtual={"start": "OnDemand"})
    await control_planes.sleep(NAME)
    await mover.until(lambda: mover.status.get("phase") == "Hibernated")
    since = mover.status["hibernation"]["since"]
    await control_planes.move(NAME, mode="Dedicated", plan=True)
    await mover.until(lambda: "plan" in mover.migration)
    assert mover.migration["plan"]["keys"] > 0
    generation = mover.seen["ControlPlane"]["metadata"]["generation"]
    await mover.until(lambda: mover.status.get("observedGeneration") == generation)
    assert mover.status["hibernation"]["since"] == since
    assert mover.status["phase"] == "Hibernated"
    assert not find_processes(mover.cluster.handle.operator_directory / apiserver_name(NAME))

    # An aborted plan leaves the control plane unchanged, and asleep.
    await control_planes.abort_move(NAME)
    await mover.until(lambda: not mover.migration)
    generation = mover.seen["ControlPlane"]["metadata"]["generation"]
    await mover.until(lambda: mover.status.get("observedGeneration") == generation)
    assert mover.status["hibernation"]["since"] == since
    assert not find_processes(mover.cluster.handle.operator_directory / apiserver_name(NAME))
    await control_planes.wake(NAME)
    await mover.until(lambda: mover.status.get("phase") == "Ready")
    await mover.patch(virtual=None)


@contextlib.contextmanager
def without_an_end_of_controllers(mover: Mover) -> Iterator[None]:
    """Suspend mcm, so that step EndingControllers lasts until the test has reverted the spec."""
    pids = find_processes(mover.cluster.handle.directory / "runtime" / components.MCM)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("step", ["Preparing", "EndingControllers"])
async def test_abort_before_the_cut_restores_the_former_state(mover: Mover, ledger: Ledger, step: str) -> None:
    async with ledger.written():
        with without_an_end_of_controllers(mover):
            await mover.ask("Dedicated")
            await mover.until(lambda: step in mover.steps)
            await mover.patch(mode="Virtual")
            await mover.until(lambda: not mover.migration)
        await is_as_before(mover, ledger)
    assert await ledger.wrong() == []


async def test_rollback_loses_no_write_and_lowers_no_version(mover: Mover, ledger: Ledger) -> None:
    control_planes = ControlPlanes(mover.cluster.client)
    await mover.patch(virtual={"start": "Always"})
    begun_lists = [await begin_list(mover)]
    async with ledger.written():
        mover.forget_steps()
        await control_planes.move(NAME, mode="Dedicated")
        await mover.arrives("Dedicated", step="Retaining")
        await mover.controllers_work()
    assert await keys_below(mover, key_prefix(NAME)) > SIZE // 2
    before = await versions(mover)
    begun_lists.append(await begin_list(mover))
    # No writers run here, because their writes would raise the versions.
    mover.forget_steps()
    await control_planes.roll_back(NAME)
    migration = await mover.arrives("Virtual", step="Retaining")
    assert migration["returns"]
    assert (await control_planes.get(NAME)).spec.virtual == VirtualSpec(start=StartPolicy.ALWAYS)
    # Until gateways route to the new home, clients may still read in the former one, where no write happens.
    former = mover.cluster.handle.operator_directory / apiserver_name(NAME, slot=1)
    await mover.eventually(lambda: find_processes(former), lambda found: not found)
    after = await versions(mover)
    assert len(before) > 100
    assert [name for name, version in before.items() if after.get(name, version) < version] == []
    # The former home has history of the time before the move, without the writes that followed. A list that a client
    # began in either home must not continue with it.
    async with TenantClient(mover.config, field_manager="kplane") as tenant:
        assert [await begun.is_refused(tenant) for begun in begun_lists] == [True, True]
    async with ledger.written():
        await mover.controllers_work()
        await mover.patch(migration={"rollbackWindow": "0s"})
        await mover.until(lambda: mover.step == "Completed")
    assert not is_there(mover, slot=1)
    assert ledger.errors == []
    assert await ledger.wrong() == []


async def test_deletion_during_migration_leaves_no_files_or_keys(mover: Mover) -> None:
    client = mover.cluster.client
    mover.forget_steps()
    await mover.patch(mode="Dedicated", virtual=None)
    await mover.until(lambda: "Starting" in mover.steps)
    await client.delete(CONTROL_PLANES, NAME)
    await mover.eventually(lambda: client.exists(CONTROL_PLANES, NAME), lambda found: not found, timeout=120)
    assert [slot for slot in (0, 1) if is_there(mover, slot=slot)] == []
    assert await keys_below(mover, key_prefix(NAME)) == 0
