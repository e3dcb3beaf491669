"""A dedicated control plane grows from a single etcd member to three while it serves."""

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


async def test_etcd_grows_to_three_members_and_keeps_objects(field: Any) -> None:
    await field.create("ControlPlaneClass", "durable", etcd={"members": 1})
    await field.create(
        "ControlPlane", "ledger", mode="Dedicated", classRef={"name": "durable"}, deletionPolicy="Destroy"
    )
    await field.becomes("ControlPlane", "ledger", "Reconciled")
    async with Client(await field.tenant("ledger"), field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(NOTE))

    await field.client.patch(CONTROL_PLANE_CLASSES, "durable", {"spec": {"etcd": {"members": 3}}})
    reasons: set[str] = set()

    async def members() -> list[str]:
        reasons.add(await field.reason("ControlPlane", "ledger", "UpToDate"))
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
    assert "EtcdIncomplete" in reasons
    for number in range(3):
        assert (field.state / etcd_name("ledger", number) / "data").is_dir()

    # The tenant keeps its credentials and objects.
    await field.becomes("ControlPlane", "ledger", "Reconciled")
    async with Client(await field.tenant("ledger"), field_manager="kplane") as tenant:
        note = await field.eventually(lambda: tenant.get(CONFIG_MAPS, "note", namespace="default"))
        assert note["data"] == NOTE["data"]

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
