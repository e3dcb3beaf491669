"""In which order a control plane is taken down: whoever works on it ends first, or had its time to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api import Condition, ControlPlaneClass, find_condition
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES

from .conftest import Data, Mortal, Operator, begin, dying_at_every_write, gone, register, remove_all, say

pytestmark = pytest.mark.integration


async def deleting(operator: Operator, name: str) -> Condition:
    """Read the condition that says where the removal is."""
    found = find_condition((await operator.look(name)).status.conditions, "Deleting")
    assert found is not None
    assert found.status == "True"
    return found


async def made(client: Mortal, name: str, data: Data) -> tuple[Operator, str]:
    """Give the operator of a control plane that is asked to go with its data, and the control plane's uid."""
    uid = await begin(client, name, policy="Destroy")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    return operator, uid


async def long_ago(client: Mortal, name: str) -> None:
    """Let the removal have begun a minute ago."""
    found = await client.get(CONTROL_PLANES, name)
    conditions = found["status"]["conditions"]
    then = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for condition in conditions:
        condition["lastTransitionTime"] = then
    await client.patch(CONTROL_PLANES, name, {"status": {"conditions": conditions}}, subresource="status")


async def test_registrations_and_instances_go_before_anything_is_touched(client: Mortal) -> None:
    name, data = "ordered", Data()
    operator, uid = await made(client, name, data)
    await register(client, name, uid=uid)

    await operator.remove(name)
    found = await deleting(operator, name)
    assert found.reason == "RegistrationsPending"
    assert found.message == f"waiting until registrations are no longer ready: {name}; for 30 s at most"
    began = found.last_transition_time

    await say(client, name, ready=False, controlPlaneUID=None)
    await operator.remove(name)
    found = await deleting(operator, name)
    assert found.reason == "InstancesEnding"
    assert name in found.message
    assert found.last_transition_time == began
    ready = find_condition((await operator.look(name)).status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "Deleting", found.message)
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


async def test_what_never_confirms_its_end_is_waited_for_30_seconds_and_named(client: Mortal) -> None:
    """mcm died. The time counts from the first look, over a restart of the operator, and not from the request."""
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
    said = f"gone on after 30 s without a confirmation that instances have ended, of registrations {name}"
    assert said in (await deleting(restarted, name)).message
    await remove_all(restarted, name)
    assert restarted.said("EndNotConfirmed") == [said]
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)


async def test_a_registration_that_was_moved_away_is_waited_for_until_its_instance_ends_here(client: Mortal) -> None:
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
async def test_nobody_else_is_waited_for(client: Mortal, status: dict[str, Any], request: Any) -> None:
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
    """The same as `made`, of one whose class makes its registration."""
    operator, uid = await made(client, name, data)
    status = {"endpoint": "https://127.0.0.1:1"}
    await client.patch(CONTROL_PLANES, name, {"status": status}, subresource="status")
    return operator, uid


@pytest.mark.parametrize("seen", [True, False], ids=["while-we-looked", "while-we-were-away"])
async def test_the_instance_of_a_default_registration_that_goes_first_has_its_time_to_end(
    client: Mortal, seen: bool
) -> None:
    """As garbage collection does it for `--cascade=foreground`; nothing can confirm the end of the instance then."""
    name, data = f"collected-{seen}".lower(), Data()
    operator, uid = await published(client, name, data)
    await register(client, name, uid=uid)
    if seen:
        await operator.look(name)
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
    await operator.remove(name, chosen=_REGISTERING)
    found = await deleting(operator, name)
    assert found.reason == "InstancesEnding"
    what = f"the instance has ended of registration {name}, which is gone already"
    assert found.message == f"waiting until {what}; for 30 s at most"
    assert data.removed == []

    await long_ago(client, name)
    restarted = Operator(client, data)
    while not await gone(client, name):
        await restarted.remove(name, chosen=_REGISTERING)
    assert not data.kept
    assert restarted.said("EndNotConfirmed") == [f"gone on after 30 s without a confirmation that {what}"]


async def test_a_default_registration_that_had_no_instance_when_it_went_is_not_waited_for(client: Mortal) -> None:
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


async def test_where_the_class_makes_no_registration_none_is_missed(client: Mortal) -> None:
    name, data = "collected-never", Data()
    operator, _ = await published(client, name, data)
    await operator.remove(name, chosen=ControlPlaneClass.model_validate({"metadata": {"name": "a"}, "spec": {}}))
    assert not data.kept
    await remove_all(operator, name)


async def test_data_that_come_back_are_deleted_again(client: Mortal) -> None:
    """Somebody who was still let in wrote while the data were deleted."""

    class Reviving(Data):
        writes = 2

        async def has_data(self, control_plane: Any) -> bool:
            self.writes -= 1
            self.kept = self.writes > 0
            return self.kept

    name, data = "revived", Reviving()
    operator, _ = await made(client, name, data)
    await operator.remove(name)
    found = await deleting(operator, name)
    assert found.reason == "VerifyingEmpty"
    assert "deleted once more" in found.message
    await operator.remove(name)
    assert data.removed == [name, name]
    assert not data.kept
    await remove_all(operator, name)


async def test_an_operator_that_dies_at_any_write_never_overtakes_an_instance(client: Mortal) -> None:
    name, data = "patient", Data()
    _, uid = await made(client, name, data)
    await register(client, name, uid=uid)
    ends = [{"ready": False, "controlPlaneUID": None}, {"instance": None}]

    async def remove() -> None:
        # Each look is that of an operator that knows nothing.
        while ends:
            await Operator(client, data).remove(name)
            assert data.removed == []
            client.deaths, deaths = None, client.deaths
            await say(client, name, **ends.pop(0))
            client.deaths = deaths
        while not await gone(client, name):
            await Operator(client, data).remove(name)

    # Six steps, the protection of the keys, a namespace, a finalizer.
    assert await dying_at_every_write(client, remove) == 18
    assert not data.kept
    await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
