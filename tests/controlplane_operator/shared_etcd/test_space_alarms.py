"""Alarm NOSPACE of a shared etcd: the operator disarms it once the etcd has free space."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import pytest

from kplane.controlplane_operator.backends import virtual
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd import alarms
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.shared_etcd.alarms import SpaceAlarms
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.data import Client, NoRoom, Owner
from kplane.provider.aio.cancellation import end_tasks
from kplane.workloads import ProcessRuntime
from tests.controlplane_operator import tenants

_QUOTA = 32 << 20
_OWNER = Owner("5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11", "large")


class Keyspace:
    """Fake of a keyspace: returns or raises the answers of `disarm` in order, and then waits."""

    def __init__(self, *answers: bool | KeyspaceError) -> None:
        self._answers = list(answers)
        self.done = asyncio.Event()

    async def disarm(self) -> bool:
        if not self._answers:
            self.done.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, KeyspaceError):
            raise answer
        return answer


async def test_disarm_is_retried_after_errors_and_pauses_after_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    def jittered(seconds: float) -> float:
        pauses.append(seconds)
        return 0.0

    monkeypatch.setattr(alarms, "jittered", jittered)
    keyspace = Keyspace(KeyspaceError("away"), False, True, False)
    etcd = cast("SharedEtcd", SimpleNamespace(keyspace=keyspace, endpoint="https://etcd:2379"))
    task = asyncio.create_task(SpaceAlarms(etcd).run())
    try:
        await asyncio.wait_for(keyspace.done.wait(), timeout=60.0)
    finally:
        await end_tasks([task])
    assert pauses == [30.0, 30.0, 600.0, 30.0]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the shared etcd at https://etcd:2379 was full, and takes writes again"
    ]


class Idle:
    """A background task of the provisioner without work."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def run(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets that event")

    def know(self) -> None:
        pass


async def test_provisioner_checks_the_alarm_of_its_shared_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("AccessControl", "EtcdHealth", "StorageMeter", "Templates"):
        monkeypatch.setattr(virtual, part, Idle)
    keyspace = Keyspace()
    etcd = cast("SharedEtcd", SimpleNamespace(keyspace=keyspace, endpoint="https://etcd:2379", namespace=None))
    provisioner = VirtualProvisioner(Mock(), runtime=Mock(), shared_etcd=etcd, restorer=Mock())
    task = asyncio.create_task(provisioner.run())
    try:
        await asyncio.wait_for(keyspace.done.wait(), timeout=60.0)
    finally:
        await end_tasks([task])


@pytest.fixture
async def full(
    runtime: ProcessRuntime, tmp_path: Path, eventually: Callable[..., Awaitable[Any]]
) -> AsyncIterator[tenants.SharedEtcd]:
    """A shared etcd that a tenant has filled, with a neighbour."""
    shared = await tenants.start_etcd(runtime, directory=tmp_path, eventually=eventually, quota_bytes=_QUOTA)
    try:
        for name in ("large", "neighbour"):
            await shared.keyspace.grant(name, prefix=key_prefix(name))
        await shared.keyspace.claim(key_prefix("large"), owner=_OWNER, known=False)
        async with shared.client("large") as client:
            with pytest.raises(NoRoom):
                await _fill(client)
        yield shared
    finally:
        await shared.keyspace.close()


async def _fill(client: Client) -> None:
    for number in range(400):
        await client.put(f"{key_prefix('large')}{number}".encode(), bytes(1 << 20))


@pytest.mark.integration
async def test_neighbour_of_deleted_tenant_can_write_again(
    full: tenants.SharedEtcd, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Awaitable[Any]]
) -> None:
    monkeypatch.setattr(alarms, "_PERIOD_SECONDS", 0.2)
    key = f"{key_prefix('neighbour')}key".encode()

    async def write(client: Client) -> bool:
        try:
            await client.put(key, b"value")
        except NoRoom:
            return False
        return True

    async with full.client("neighbour") as neighbour:
        assert not await write(neighbour)
        checks = asyncio.create_task(SpaceAlarms(cast("SharedEtcd", _operators(full))).run())
        try:
            # A full etcd accepts deletions, as the clean-up of a tenant or of a copy needs.
            assert await full.keyspace.delete_prefix(key_prefix("large"), owner=_OWNER) > _QUOTA >> 21
            await eventually(lambda: write(neighbour), timeout=120)
            assert await full.keyspace.problem() is None
        finally:
            await end_tasks([checks])


def _operators(etcd: tenants.SharedEtcd) -> Any:
    """Return the access of the operator to the etcd."""
    return SimpleNamespace(keyspace=etcd.keyspace, endpoint=etcd.url)
