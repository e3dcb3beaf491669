"""Order of a removal: registrations and instances end first, or their time to end runs out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api import Condition, ControlPlaneClass, find_condition
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES

from .conftest import Data, Mortal, Operator, begin, dying_at_every_write, gone, register, remove_all, say

pytestmark = pytest.mark.integration


async def deleting(operator: Operator, name: str) -> Condition:
    """Return condition Deleting, whose reason is the current step of the removal."""
    condition = find_condition((await operator.look(name)).status.conditions, "Deleting")
    assert condition is not None
    assert condition.status == "True"
    return condition


async def made(client: Mortal, name: str, data: Data) -> tuple[Operator, str]:
    """Create and delete a control plane with policy Destroy; return its operator and its uid."""
    uid = await begin(client, name, policy="Destroy")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    return operator, uid


async def long_ago(client: Mortal, name: str) -> None:
    """Set the start of the removal to a minute ago."""
    control_plane = await client.get(CONTROL_PLANES, name)
    conditions = control_plane["status"]["conditions"]
    timestamp = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for condition in conditions:
        condition["lastTransitionTime"] = timestamp
    await client.patch(CONTROL_PLANES, name, {"status": {"conditions": conditions}}, subresource="status")


async def test_removal_waits_for_registrations_and_instances_first(client: Mortal) -> None:
    name, data = "ordered", Data()
    operator, uid = await made(client, name, data)
    await register(client, name, uid=uid)

    await operator.remove(name)
    condition = await deleting(operator, name)
    assert condition.reason == "RegistrationsPending"
    assert condition.message == f"waiting until registrations are no longer ready: {name}; for 30 s at most"
    began = condition.last_transition_time

    await say(client, name, ready=False, controlPlaneUID=None)
    await operator.remove(name)
    condition = await deleting(operator, name)
    assert condition.reason == "InstancesEnding"
    assert name in condition.message
    assert condition.last_transition_time == began
    ready = find_condition((await operator.look(name)).status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "Deleting", condition.message)
    assert data.removed == []
    assert data.kept

    await say(client, name, instance=None)
    await operator.remove(name)
    assert not data.kept
    assert (await deleting(operator, name)).reason == "RemovingNamespace"
    await remove_all(operator, name)
    steps = [reason for reason, _ in operator.events.said if reason not in {"Deleting", "Deleted"}]
    assert steps == [
        "RegistrationsPending",
        "InstancesEnding",
        "RevokingCredentials",
        "DeletingData",
        "VerifyingEmpty",
        "RemovingNamespace",
    ]
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)


async def test_removal_continues_after_30_s_without_confirmed_end(client: Mortal) -> None:
    """mcm crashed. The time counts from the first reconcile, not the request, and spans a restart of the operator."""
    name, data = "unconfirmed", Data()
    operator, uid = await made(client, name, data)
    await register(client, name, uid=uid, ready=False)
    await operator.remove(name)
    assert (await deleting(operator, name)).reason == "InstancesEnding"
    assert data.removed == []

    await long_ago(client, name)
    restarted = Operator(client, data)
    await restarted.remove(name)
    assert not data.kept
    message = f"gone on after 30 s without a confirmation that instances have ended, of registrations {name}"
    assert message in (await deleting(restarted, name)).message
    await remove_all(restarted, name)
    assert restarted.said("EndNotConfirmed") == [message]
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)


async def test_removal_waits_for_instance_of_moved_registration(client: Mortal) -> None:
    name, data = "left", Data()
    operator, uid = await made(client, name, data)
    await register(client, name, uid=uid)
    await client.patch(CONTROL_PLANE_REGISTRATIONS, name, {"spec": {"controlPlaneRef": {"name": "another"}}})
    await say(client, name, controlPlaneUID="uid-of-another")
    await operator.remove(name)
    assert (await deleting(operator, name)).reason == "InstancesEnding"
    await say(client, name, instance={"controlPlaneUID": "uid-of-another"})
    await remove_all(operator, name)
    assert not data.kept
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)


@pytest.mark.parametrize(
    "status",
    [
        {"ready": False, "instance": None},
        {"ready": False, "instance": {"controlPlaneUID": "uid-of-another"}},
        {"controlPlaneUID": "uid-of-another", "instance": {"controlPlaneUID": "uid-of-another"}},
    ],
    ids=["mcm-never-there", "of-another", "ready-for-another"],
)
async def test_removal_ignores_registrations_without_own_instance(
    client: Mortal, status: dict[str, Any], request: Any
) -> None:
    name, data = f"alone-{request.node.callspec.id}", Data()
    operator, uid = await made(client, name, data)
    await register(client, name, uid=uid)
    await say(client, name, **status)
    await operator.remove(name)
    assert not data.kept
    await remove_all(operator, name)
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)


_REGISTERING = ControlPlaneClass.model_validate(
    {"metadata": {"name": "registering"}, "spec": {"defaultServices": ["Controllers"]}}
)


async def published(client: Mortal, name: str, data: Data) -> tuple[Operator, str]:
    """Same as `made`, for a published control plane, whose class creates its registration."""
    operator, uid = await made(client, name, data)
    status = {"endpoint": "https://127.0.0.1:1"}
    await client.patch(CONTROL_PLANES, name, {"status": status}, subresource="status")
    return operator, uid


@pytest.mark.parametrize("seen", [True, False], ids=["while-we-looked", "while-we-were-away"])
async def test_instance_of_deleted_default_registration_has_30_s_to_end(client: Mortal, seen: bool) -> None:
    """As with `--cascade=foreground`: garbage collection deletes the registration, and the end stays unconfirmed."""
    name, data = f"collected-{seen}".lower(), Data()
    operator, uid = await published(client, name, data)
    await register(client, name, uid=uid)
    if seen:
        await operator.look(name)
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
    await operator.remove(name, chosen=_REGISTERING)
    condition = await deleting(operator, name)
    assert condition.reason == "InstancesEnding"
    subject = f"the instance has ended of registration {name}, which is gone already"
    assert condition.message == f"waiting until {subject}; for 30 s at most"
    assert data.removed == []

    await long_ago(client, name)
    restarted = Operator(client, data)
    while not await gone(client, name):
        await restarted.remove(name, chosen=_REGISTERING)
    assert not data.kept
    assert restarted.said("EndNotConfirmed") == [f"gone on after 30 s without a confirmation that {subject}"]


async def test_removal_ignores_default_registration_without_instance(client: Mortal) -> None:
    name, data = "collected-idle", Data()
    operator, uid = await published(client, name, data)
    await register(client, name, uid=uid)
    await operator.remove(name, chosen=_REGISTERING)
    await say(client, name, ready=False, controlPlaneUID=None, instance=None)
    await operator.look(name)
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
    await operator.remove(name, chosen=_REGISTERING)
    assert not data.kept
    while not await gone(client, name):
        await operator.remove(name, chosen=_REGISTERING)
    assert operator.said("EndNotConfirmed") == []


async def test_removal_expects_no_registration_if_class_creates_none(client: Mortal) -> None:
    name, data = "collected-never", Data()
    operator, _ = await published(client, name, data)
    await operator.remove(name, chosen=ControlPlaneClass.model_validate({"metadata": {"name": "a"}, "spec": {}}))
    assert not data.kept
    await remove_all(operator, name)


async def test_rewritten_data_are_deleted_again(client: Mortal) -> None:
    """A client that still had access wrote during the deletion of the data."""

    class Reviving(Data):
        writes = 2

        async def has_data(self, control_plane: Any) -> bool:
            self.writes -= 1
            self.kept = self.writes > 0
            return self.kept

    name, data = "revived", Reviving()
    operator, _ = await made(client, name, data)
    await operator.remove(name)
    condition = await deleting(operator, name)
    assert condition.reason == "VerifyingEmpty"
    assert "deleted once more" in condition.message
    await operator.remove(name)
    assert data.removed == [name, name]
    assert not data.kept
    await remove_all(operator, name)


async def test_crashing_operator_still_waits_for_instances_to_end(client: Mortal) -> None:
    name, data = "patient", Data()
    _, uid = await made(client, name, data)
    await register(client, name, uid=uid)
    ends = [{"ready": False, "controlPlaneUID": None}, {"instance": None}]

    async def remove() -> None:
        # Each reconcile runs in a new operator without memory.
        while ends:
            await Operator(client, data).remove(name)
            assert data.removed == []
            client.deaths, deaths = None, client.deaths
            await say(client, name, **ends.pop(0))
            client.deaths = deaths
        while not await gone(client, name):
            await Operator(client, data).remove(name)

    # Two crashes for each write: six steps, the protection of the keys, a namespace, a finalizer.
    assert await dying_at_every_write(client, remove) == 18
    assert not data.kept
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
