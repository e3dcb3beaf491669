"""By which policy a removal goes on, once it has begun, and where it cannot know what was wanted."""

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
    """Make a control plane that has its policy from its class."""
    await begin(client, name, policy=policy)
    await client.patch(CONTROL_PLANES, name, {"spec": {"deletionPolicy": None, "classRef": {"name": "c"}}})


@pytest.mark.parametrize("in_force", ["Retain", "Destroy"])
async def test_a_class_that_was_edited_while_the_operator_was_away_destroys_nothing(
    client: Mortal, in_force: str
) -> None:
    name, data = f"unclear-{in_force.lower()}", Data()
    await begun(client, name, policy=in_force)
    operator, edited = Operator(client, data), class_of("Destroy" if in_force == "Retain" else "Retain")
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    while not await gone(client, name):
        await operator.removal.remove(await operator.look(name), chosen=edited)
    assert data.kept
    [told] = operator.said("PolicyUnclear")
    assert in_force in told
    await client.delete(NAMESPACES, f"kplane-cp-{name}")


async def test_a_class_that_was_edited_a_moment_ago_destroys_nothing(client: Mortal) -> None:
    """Its watch has not told that yet."""
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
async def test_destroy_holds_once_it_has_begun(client: Mortal, becomes: str | None) -> None:
    """The operator dies after it has written down what it is about to do, and the class is another one then."""
    name, data = f"begun-{becomes}".lower(), Data()
    await begun(client, name, policy="Destroy")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.refused = {f"kplane-cp-{name}"}
    await operator.removal.remove(await operator.look(name), chosen=class_of("Destroy"))
    assert (await operator.look(name)).status.phase == "Terminating"
    client.refused = set()
    another = Operator(client, data)
    await another.removal.remove(await another.look(name), chosen=class_of(becomes) if becomes is not None else None)
    assert not data.kept
    assert another.said("PolicyUnclear") == []
    await remove_all(another, name)


async def test_no_other_policy_comes_into_force_once_the_deletion_was_asked_for(client: Mortal) -> None:
    """The edit of the class is seen before the deletion, which came first."""
    name, data = "asked-first", Data()
    await begun(client, name, policy="Retain")
    operator = Operator(client, data)
    await operator.make(name)
    seen = await operator.look(name)
    await client.delete(CONTROL_PLANES, name)
    status = seen.status.model_copy(update={"deletion_policy": DeletionPolicy.DESTROY})
    with pytest.raises(Conflict):
        await operator.context.status.write(
            operator.context.stores.control_planes, seen, status=status, only_as_seen=True
        )
    assert (await operator.look(name)).status.deletion_policy == "Retain"
    await operator.remove(name)
    assert await gone(client, name)
    assert data.kept
    await client.delete(NAMESPACES, f"kplane-cp-{name}")


async def test_the_policy_is_written_down_before_anything_is_removed(client: Mortal) -> None:
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
