"""A dedicated control plane gets three members of etcd in place of one, while it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplane.components.names import etcd_name
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NOTE = {"metadata": {"name": "note", "namespace": "default"}, "data": {"of": "the first member"}}


async def test_the_members_of_a_class_grow_and_the_tenant_keeps_its_objects(field: Any) -> None:
    await field.create("ControlPlaneClass", "durable", etcd={"members": 1})
    await field.create(
        "ControlPlane", "ledger", mode="Dedicated", classRef={"name": "durable"}, deletionPolicy="Destroy"
    )
    await field.becomes("ControlPlane", "ledger", "Reconciled")
    async with Client(await field.tenant("ledger"), field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(NOTE))

    await field.client.patch(CONTROL_PLANE_CLASSES, "durable", {"spec": {"etcd": {"members": 3}}})
    told: set[str] = set()

    async def members() -> list[str]:
        told.add(await field.reason("ControlPlane", "ledger", "UpToDate"))
        arguments = [
            argument
            for pid in find_processes(field.state)
            for argument in _arguments(pid)
            if argument.startswith("--etcd-servers=")
        ]
        return [url for argument in arguments for url in argument.split(",")]

    await field.eventually(members, lambda found: len(found) == 3, timeout=120.0)
    await field.eventually(
        lambda: field.reason("ControlPlane", "ledger", "UpToDate"), lambda reason: reason == "", timeout=120.0
    )
    assert "EtcdIncomplete" in told
    for number in range(3):
        assert (field.state / etcd_name("ledger", number) / "data").is_dir()

    # The tenant's credentials and objects are the same.
    await field.becomes("ControlPlane", "ledger", "Reconciled")
    async with Client(await field.tenant("ledger"), field_manager="kplane") as tenant:
        found = await field.eventually(lambda: tenant.get(CONFIG_MAPS, "note", namespace="default"))
        assert found["data"] == NOTE["data"]

    await field.client.patch(CONTROL_PLANES, "ledger", {"spec": {"dedicated": {"etcd": {"members": 1}}}})
    await field.eventually(
        lambda: field.reason("ControlPlane", "ledger", "UpToDate"), lambda reason: reason == "EtcdMembersKept"
    )
    await field.client.delete(CONTROL_PLANES, "ledger")
    await field.gone(CONTROL_PLANES, "ledger")
    assert not [path for path in field.state.iterdir() if "etcd" in path.name]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
