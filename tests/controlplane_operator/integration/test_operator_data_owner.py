"""A control plane neither starts on nor destroys data in the shared etcd that belong to another owner."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api.names import DESTROY_DATA_ANNOTATION
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.data import Delete, Owner, claim, owner_key, owner_of
from kplane.provider.client.resources import EVENTS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def create(field: Any, name: str, *, confirmed: str | None = None) -> None:
    annotations = {} if confirmed is None else {DESTROY_DATA_ANNOTATION: confirmed}
    metadata = {"name": name, "annotations": annotations}
    await field.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {"deletionPolicy": "Destroy"}})


async def message(field: Any, name: str) -> str:
    control_plane = await field.becomes("ControlPlane", name, "DataNotOwned")
    condition_message: str = next(
        item["message"] for item in control_plane["status"]["conditions"] if item["type"] == "Ready"
    )
    return condition_message


async def delete(field: Any, name: str) -> None:
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


@pytest.mark.parametrize(
    ("name", "owner", "confirmation", "whose"),
    [
        ("squat", None, "/clusters/squat/", "no control plane that is known"),
        ("taken", Owner("6f1c", "taken"), "/clusters/taken/@6f1c", r"control plane taken (6f1c)"),
    ],
    ids=["no owner", "another owner"],
)
async def test_data_of_another_owner_are_destroyed_only_with_annotation(
    field: Any, name: str, owner: Owner | None, confirmation: str, whose: str
) -> None:
    prefix = f"/clusters/{name}/"
    async with field.handle.tenants_etcd.client() as etcd:
        if owner is not None:
            await claim(etcd, prefix, owner=owner)
        await etcd.put(f"{prefix}registry/configmaps/default/precious".encode(), b"42")

        for wrong_value in (None, "true"):
            await create(field, name, confirmed=wrong_value)
            text = await message(field, name)
            assert whose in text
            assert (
                f"set annotation {DESTROY_DATA_ANNOTATION} to {confirmation} and spec.deletionPolicy to Destroy" in text
            )
            await delete(field, name)
            assert await etcd.count(prefix) == 1
            assert await owner_of(etcd, prefix) == owner

        async def left() -> bool:
            events = (await field.client.list(EVENTS, namespace="default")).items
            return any((event["reason"], event["involvedObject"]["name"]) == ("DataLeft", name) for event in events)

        await field.eventually(left)

        await create(field, name, confirmed=confirmation)
        await message(field, name)
        await delete(field, name)
        assert await etcd.count(prefix) == 0
        assert await owner_of(etcd, prefix) is None


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="function")
async def test_owner_key_is_written_at_upgrade_and_checked_after_restore(mortal_field: Any) -> None:
    field, operator = mortal_field
    prefix = "/clusters/older/"
    async with field.handle.tenants_etcd.client() as etcd:
        async with operator():
            await field.create("ControlPlane", "older", deletionPolicy="Destroy")
            uid = (await field.becomes("ControlPlane", "older", "Reconciled"))["metadata"]["uid"]
            assert await owner_of(etcd, prefix) == Owner(uid, "older")

        # An older version wrote no owner key.
        await etcd.apply([Delete(owner_key(prefix))])
        async with operator():
            await field.eventually(lambda: owner_of(etcd, prefix), lambda found: found == Owner(uid, "older"))
            await field.becomes("ControlPlane", "older", "Reconciled")

        # A restored etcd may be of a time when an earlier control plane had this path.
        await etcd.put(owner_key(prefix), b"6f1c older")
        async with operator():
            assert "belong to control plane older (6f1c)" in await message(field, "older")
            assert await etcd.access.roles_of(f"cp-{uid}") is None
            # The remedy of docs/troubleshoot/data-of-another-owner.md.
            await etcd.put(owner_key(prefix), f"{uid} older".encode())
            await field.becomes("ControlPlane", "older", "Reconciled")
            assert await etcd.access.roles_of(f"cp-{uid}") == (f"cp-{uid}",)
            assert (await field.get("ControlPlane", "older"))["status"]["phase"] == "Ready"
