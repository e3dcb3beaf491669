"""Control planes in a second shared etcd, and migrations between both shared etcds."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS
from tests.controlplane_operator.tenants import SharedEtcd, running_etcd

from .behind_gateway import external_config
from .ledger import Ledger
from .moving import Mover, moving_cluster

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME: Final = "pooled"
POOL: Final = "pool-b"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(
    binaries: Binaries, tmp_path_factory: pytest.TempPathFactory, eventually: Callable[..., Any]
) -> AsyncIterator[SharedEtcd]:
    """The second shared etcd."""
    directory = tmp_path_factory.mktemp("pool")
    async with running_etcd(binaries, directory=directory, eventually=eventually) as etcd:
        yield etcd


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries,
    pool: SharedEtcd,
    tmp_path_factory: pytest.TempPathFactory,
    eventually: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
) -> AsyncIterator[Mover]:
    credentials: Path = tmp_path_factory.mktemp("data-stores")
    shutil.copytree(pool.directory / "root", credentials / POOL)
    (credentials / POOL / "ca.key").write_bytes(pool.authority.key)
    async with moving_cluster(
        binaries,
        name=NAME,
        eventually=eventually,
        namespaces_go_at_once=namespaces_go_at_once,
        operator_arguments=(f"--data-store={POOL}={pool.url}", f"--data-store-credentials={credentials}"),
    ) as mover:
        yield mover


async def keys(mover: Mover, pool: SharedEtcd, name: str) -> tuple[int, int]:
    """Return the numbers of keys of a control plane in the first etcd and in the second etcd."""
    async with pool.client("root") as etcd:
        other = await etcd.count(key_prefix(name))
    return await mover.cluster.handle.tenants_etcd.count(key_prefix(name)), other


async def move(mover: Mover, *, to: str | None) -> dict[str, Any]:
    """Move the control plane to another data store. Returns `status.migration`."""
    mover.former = mover.migration.get("startedTime")
    mover.steps.clear()
    await mover.patch(virtual={"dataStoreRef": {"name": to} if to is not None else None})
    await mover.until(
        lambda: mover.status["home"].get("dataStore") == to and mover.steps[-1:] == ["Completed"], timeout=90
    )
    return mover.migration


async def test_data_move_to_another_shared_etcd_and_back_under_writers(mover: Mover, pool: SharedEtcd) -> None:
    ledger = Ledger(mover.config, size=200)
    await ledger.fill()
    async with ledger.written():
        migration = await move(mover, to=POOL)
        assert str(migration["to"]["dataStore"]) == POOL
        await mover.controllers_work()
    assert ledger.errors == []
    assert await ledger.wrong() == []
    first, other = await keys(mover, pool, NAME)
    assert first == 0
    assert other > 200
    async with ledger.written():
        await move(mover, to=None)
        await mover.controllers_work()
    assert ledger.errors == []
    assert await ledger.wrong() == []
    first, other = await keys(mover, pool, NAME)
    assert first > 200
    assert other == 0


async def test_target_api_server_restarts_for_a_service_without_address(
    mover: Mover, pool: SharedEtcd, eventually: Callable[..., Any]
) -> None:
    # This also happens by chance, if clients write Services while the API server starts. The test forces the case.
    prefix = f"{key_prefix(NAME)}ipaddresses/"
    mover.former = mover.migration.get("startedTime")
    mover.steps.clear()
    await mover.patch(virtual={"dataStoreRef": {"name": POOL}})
    await mover.until(lambda: "Starting" in mover.steps)
    async with pool.client("root") as etcd:
        addresses = [entry async for page in etcd.pages(prefix) for entry in page.items]
        assert addresses
        await etcd.delete_prefix(prefix)
        await mover.until(lambda: "it starts again" in str(mover.migration.get("message")), timeout=60)
        for entry in addresses:
            await etcd.put(entry.key, entry.value)
    await mover.until(lambda: mover.steps[-1:] == ["Completed"], timeout=60)
    await mover.controllers_work()
    await move(mover, to=None)


async def test_change_of_class_data_store_moves_its_control_planes(
    mover: Mover, pool: SharedEtcd, eventually: Callable[..., Any]
) -> None:
    client = mover.cluster.client
    virtual = {"dataStoreRef": {"name": POOL}, "start": "Always"}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": POOL}, "spec": {"virtual": virtual}})
    spec = {"classRef": {"name": POOL}, "deletionPolicy": "Destroy", "migration": {"rollbackWindow": "0s"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": "born"}, "spec": spec})

    async def status() -> dict[str, Any]:
        return dict((await client.get(CONTROL_PLANES, "born")).get("status") or {})

    await eventually(status, lambda found: found.get("phase") == "Ready", timeout=90)
    first, other = await keys(mover, pool, "born")
    assert first == 0
    assert other > 0
    config = await external_config(client, "born")
    async with Client(config, field_manager="kplane") as tenant:
        body = {"metadata": {"name": "kept", "namespace": "default"}, "data": {"kept": "yes"}}
        created = await eventually(lambda: tenant.create(CONFIG_MAPS, body))
        await client.patch(CONTROL_PLANE_CLASSES, POOL, {"spec": {"virtual": {"dataStoreRef": {"name": "default"}}}})
        await eventually(
            status,
            lambda found: (
                "dataStore" not in found["home"] and (found.get("migration") or {}).get("step") == "Completed"
            ),
            timeout=90,
        )
        moved = await tenant.get(CONFIG_MAPS, "kept", namespace="default")
    assert (moved["metadata"]["uid"], moved["data"]) == (created["metadata"]["uid"], created["data"])
    assert (await keys(mover, pool, "born"))[1] == 0
    await client.delete(CONTROL_PLANES, "born")
    await eventually(lambda: client.exists(CONTROL_PLANES, "born"), lambda there: not there, timeout=60)
    assert await keys(mover, pool, "born") == (0, 0)


async def test_plan_of_move_to_another_data_store_keeps_sleeper_asleep(
    mover: Mover, pool: SharedEtcd, eventually: Callable[..., Any]
) -> None:
    client = mover.cluster.client
    virtual = {"dataStoreRef": {"name": POOL}, "start": "OnDemand"}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": "elsewhere"}, "spec": {"virtual": virtual}})
    spec = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": "sleeper"}, "spec": spec})

    async def status() -> dict[str, Any]:
        return dict((await client.get(CONTROL_PLANES, "sleeper")).get("status") or {})

    asleep = await eventually(status, lambda found: found.get("phase") == "Hibernated", timeout=90)
    planned = {"spec": {"classRef": {"name": "elsewhere"}, "migration": {"plan": True}}}
    generation = (await client.patch(CONTROL_PLANES, "sleeper", planned))["metadata"]["generation"]
    current = await eventually(status, lambda found: "plan" in (found.get("migration") or {}), timeout=60)
    assert current["migration"]["plan"]["keys"] > 0
    current = await eventually(status, lambda found: found.get("observedGeneration") == generation)
    assert (current["phase"], current["hibernation"]["since"]) == ("Hibernated", asleep["hibernation"]["since"])
    first, other = await keys(mover, pool, "sleeper")
    assert (first > 0, other) == (True, 0)
    await client.delete(CONTROL_PLANES, "sleeper")
    await eventually(lambda: client.exists(CONTROL_PLANES, "sleeper"), lambda there: not there, timeout=60)


async def test_pending_control_plane_starts_after_its_reference_is_fixed(
    mover: Mover, pool: SharedEtcd, eventually: Callable[..., Any]
) -> None:
    client = mover.cluster.client

    async def ready(name: str) -> tuple[str, str | None]:
        status = (await client.get(CONTROL_PLANES, name)).get("status") or {}
        conditions = [condition for condition in status.get("conditions") or [] if condition["type"] == "Ready"]
        return status.get("phase", ""), conditions[0]["reason"] if conditions else None

    typo = {"metadata": {"name": "typo"}, "spec": {"virtual": {"dataStoreRef": {"name": "pool-x"}}}}
    await client.create(CONTROL_PLANES, typo)
    await client.create(CONTROL_PLANES, {"metadata": {"name": "early"}, "spec": {"classRef": {"name": "late"}}})
    await eventually(lambda: ready("typo"), lambda found: found == ("Pending", "DataStoreNotFound"))
    await eventually(lambda: ready("early"), lambda found: found == ("Pending", "ClassNotFound"))
    await client.patch(CONTROL_PLANES, "typo", {"spec": {"virtual": {"dataStoreRef": {"name": POOL}}}})
    spec = {"virtual": {"dataStoreRef": {"name": POOL}}}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": "late"}, "spec": spec})
    for name in ("typo", "early"):
        await eventually(lambda name=name: ready(name), lambda found: found[0] in {"Ready", "Hibernated"}, timeout=60)
        first, other = await keys(mover, pool, name)
        assert (first, other > 0) == (0, True)
        await client.delete(CONTROL_PLANES, name)


async def test_unknown_data_store_is_reported_and_home_stays(mover: Mover, eventually: Callable[..., Any]) -> None:
    before = mover.status["home"]
    await mover.patch(virtual={"dataStoreRef": {"name": "missing"}})
    await mover.until(lambda: "this operator has no data store missing, and has default, pool-b" in str(mover.status))
    assert mover.status["home"] == before
    await mover.controllers_work()
    await mover.patch(virtual=None)
    await mover.until(lambda: not mover.migration)
