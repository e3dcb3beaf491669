"""The deletion policy of a removal: fixed once the removal has begun, and Retain if a class edit makes it unclear."""

from __future__ import annotations

import pytest

from kplane.api import ControlPlaneClass, DeletionPolicy
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider import Conflict
from kplane.provider.client.resources import NAMESPACES

from .conftest import Data, Died, Mortal, Operator, begin, gone, remove_all

pytestmark = pytest.mark.integration


def class_of(policy: str) -> ControlPlaneClass:
    return ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"deletionPolicy": policy}})


async def begun(client: Mortal, name: str, *, policy: str) -> None:
    """Create a control plane whose class sets its deletion policy."""
    await begin(client, name, policy=policy)
    await client.patch(CONTROL_PLANES, name, {"spec": {"deletionPolicy": None, "classRef": {"name": "c"}}})


@pytest.mark.parametrize("in_force", ["Retain", "Destroy"])
async def test_class_edit_during_operator_downtime_retains_data(client: Mortal, in_force: str) -> None:
    name, data = f"unclear-{in_force.lower()}", Data()
    await begun(client, name, policy=in_force)
    operator, edited_class = Operator(client, data), class_of("Destroy" if in_force == "Retain" else "Retain")
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    while not await gone(client, name):
        await operator.removal.remove(await operator.look(name), chosen=edited_class)
    assert data.kept
    [message] = operator.said("PolicyUnclear")
    assert in_force in message
    await client.delete(NAMESPACES, f"kplane-cp-{name}")


async def test_class_edit_before_its_watch_event_retains_data(client: Mortal) -> None:
    """The watch event of the edit has not arrived yet."""
    name, data = "edited-now", Data()
    await begin(client, name, policy="Destroy")
    await client.patch(CONTROL_PLANES, name, {"spec": {"deletionPolicy": None, "classRef": {"name": name}}})
    operator = Operator(client, data)
    await operator.make(name)
    body = {"metadata": {"name": name}, "spec": {"deletionPolicy": "Retain"}}
    await client.create(CONTROL_PLANE_CLASSES, body)
    await client.delete(CONTROL_PLANES, name)
    while not await gone(client, name):
        await operator.removal.remove(await operator.look(name), chosen=class_of("Destroy"))
    assert data.kept
    assert operator.said("PolicyUnclear") != []
    await client.delete(CONTROL_PLANE_CLASSES, name)
    await client.delete(NAMESPACES, f"kplane-cp-{name}")


@pytest.mark.parametrize("becomes", ["Retain", None])
async def test_begun_destroy_continues_after_class_changes(client: Mortal, becomes: str | None) -> None:
    """The operator crashes after it has recorded the policy, and the class changes or disappears then."""
    name, data = f"begun-{becomes}".lower(), Data()
    await begun(client, name, policy="Destroy")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.refused = {f"kplane-cp-{name}"}
    await operator.removal.remove(await operator.look(name), chosen=class_of("Destroy"))
    assert (await operator.look(name)).status.phase == "Terminating"
    client.refused = set()
    successor = Operator(client, data)
    await successor.removal.remove(
        await successor.look(name), chosen=class_of(becomes) if becomes is not None else None
    )
    assert not data.kept
    assert successor.said("PolicyUnclear") == []
    await remove_all(successor, name)


async def test_policy_is_fixed_once_deletion_was_requested(client: Mortal) -> None:
    """The operator sees the edit of the class before the deletion, which came first."""
    name, data = "asked-first", Data()
    await begun(client, name, policy="Retain")
    operator = Operator(client, data)
    await operator.make(name)
    control_plane = await operator.look(name)
    await client.delete(CONTROL_PLANES, name)
    status = control_plane.status.model_copy(update={"deletion_policy": DeletionPolicy.DESTROY})
    with pytest.raises(Conflict):
        await operator.context.status.write(
            operator.context.stores.control_planes, control_plane, status=status, only_as_seen=True
        )
    assert (await operator.look(name)).status.deletion_policy == "Retain"
    await operator.remove(name)
    assert await gone(client, name)
    assert data.kept
    await client.delete(NAMESPACES, f"kplane-cp-{name}")


async def test_no_data_are_removed_before_the_first_write(client: Mortal) -> None:
    name, data = "written-first", Data()
    await begun(client, name, policy="Destroy")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.deaths = set()
    with pytest.raises(Died):
        await operator.removal.remove(await operator.look(name), chosen=class_of("Destroy"))
    client.deaths = None
    assert data.removed == []
    assert data.kept
    await remove_all(Operator(client, data), name)
