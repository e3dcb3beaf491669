"""Snapshots of a real etcd."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.data import Client, PermissionDenied, Snapshot, Unreachable

from .conftest import Etcd

pytestmark = pytest.mark.integration


async def test_snapshot_is_restorable_by_etcdutl(client: Client, prefix: str, binaries: Any, tmp_path: Path) -> None:
    revision = await client.put(f"{prefix}key".encode(), b"saved in a snapshot" * 1000)
    snapshot = await Snapshot.take(client.connection)
    content = b"".join([chunk async for chunk in snapshot.chunks()])
    assert len(content) == snapshot.size
    assert b"saved in a snapshot" in content

    (tmp_path / "x.db").write_bytes(content)
    etcdutl = str(binaries.path("etcd").with_name("etcdutl"))
    status = json.loads(run(etcdutl, "snapshot", "status", "-w", "json", f"{tmp_path}/x.db"))
    assert status["revision"] >= revision
    # The restore verifies the hash.
    run(etcdutl, "snapshot", "restore", f"{tmp_path}/x.db", f"--data-dir={tmp_path}/restored")


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def test_snapshot_requires_user_root(
    client: Client, etcd: Etcd, tmp_path: Path, new_prefix: Callable[[], str]
) -> None:
    """A snapshot contains the keys of all tenants."""
    user = f"tenant{new_prefix().strip('/').replace('/', '-')}"
    await client.access.add_user(user)
    async with Client(etcd.url, credentials=etcd.credentials(user, tmp_path)) as tenant:
        with pytest.raises(PermissionDenied):
            await Snapshot.take(tenant.connection)


async def test_snapshot_of_absent_etcd_raises_unreachable(etcd: Etcd, client: Client, tmp_path: Path) -> None:
    async with Client("https://127.0.0.1:1", credentials=etcd.credentials("root", tmp_path)) as unreachable:
        with pytest.raises(Unreachable, match=r"failed to call Snapshot of etcd at https://127.0.0.1:1"):
            await Snapshot.take(unreachable.connection)
