"""Endpoint switch: a control plane moves to another address only after its registrations released the former."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneRegistration
from kplane.controlplane_operator.registrations import endpoint_switch as module
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.resolution import SecretStanding, resolve
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import ClusterConfig

from .watched import taken

_OLD, _NEW = "https://old.example", "https://new.example"
_ADMIN = {"name": "controlplane-acme-kubeconfig", "namespace": "kplane-cp-acme"}
_CONTROLLERS = {"name": "controlplane-acme-controllers", "namespace": "kplane-cp-acme"}


class World:
    """A control plane and a registration in the operator's stores."""

    def __init__(self) -> None:
        self.stores, self.triggers = Stores(), Triggers()
        self.switch = EndpointSwitch(self.stores, triggers=self.triggers)
        self._version = 0
        for reference in (_ADMIN, _CONTROLLERS):
            self.secret(reference, server=_OLD)

    def _metadata(self, name: str, **more: Any) -> dict[str, Any]:
        self._version += 1
        return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self._version), "generation": 1, **more}

    def control_plane(self, *, endpoint: str | None = _OLD) -> ControlPlane:
        refs = {"kubeconfigSecretRef": _ADMIN, "controllersSecretRef": _CONTROLLERS}
        status = {"endpoint": endpoint, **refs} if endpoint is not None else {}
        obj = {"metadata": self._metadata("acme"), "spec": {}, "status": status}
        self.stores.control_planes.apply(obj)
        return ControlPlane.model_validate(obj)

    def secret(self, reference: dict[str, str], *, server: str) -> None:
        kubeconfig = json.dumps(ClusterConfig(server=server, token="t").to_kubeconfig()).encode()
        metadata = self._metadata(reference["name"], namespace=reference["namespace"])
        data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
        self.stores.secrets.apply({"metadata": metadata, "data": data})

    def registration(self, *, at: str | None, secret: dict[str, str] | None = None) -> ControlPlaneRegistration:
        status: dict[str, Any] = {"ready": False}
        if at is not None:
            status = {
                "ready": True,
                "resolvedEndpoint": at,
                "resolvedKubeconfigSecretRef": secret or _ADMIN,
                "controlPlaneUID": "uid-acme",
            }
        spec: dict[str, Any] = {"controlPlaneRef": {"name": "acme"}}
        if secret is not None:
            spec["kubeconfigSecretRef"] = secret
        obj = {"metadata": self._metadata("reg"), "spec": spec, "status": status}
        self.stores.registrations.apply(obj)
        return ControlPlaneRegistration.model_validate(obj)

    def check(self, registration: ControlPlaneRegistration, of: ControlPlane) -> None:
        resolution = resolve(registration, control_plane=of, endpoint=None, standing=SecretStanding.USABLE)
        self.switch.check(registration, resolution, of=of)


async def test_move_waits_until_registrations_release_the_address(eventually: Any) -> None:
    world, steps = World(), list[str]()
    control_plane, registration = world.control_plane(), world.registration(at=_OLD)

    async def move() -> None:
        async with world.switch.moving(control_plane, to=_NEW):
            steps.append("written")

    task = asyncio.create_task(move())
    await eventually(lambda: taken(world.triggers.registrations), lambda names: names == {"reg"})
    assert steps == []
    async with world.switch.resolving("acme"):
        with pytest.raises(ConditionError, match="is moving to another address") as refusal:
            world.check(registration, control_plane)
        assert refusal.value.waits_for_event
        world.registration(at=None)
        await asyncio.sleep(0)
        # The holder of the lock publishes first.
        assert steps == []
        steps.append("let go")
    await asyncio.wait_for(task, 1)
    assert steps == ["let go", "written"]
    # The registration is enqueued to resolve the new address.
    assert taken(world.triggers.registrations) == {"reg"}


async def test_move_waits_for_registration_published_meanwhile() -> None:
    world = World()
    control_plane = world.control_plane()
    async with world.switch.resolving("acme"):
        moving = world.switch.moving(control_plane, to=_NEW)
        task = asyncio.ensure_future(moving.__aenter__())
        await asyncio.sleep(0)
        # The registration was resolved before the move, and is published during the move.
        world.registration(at=_OLD)
    await asyncio.sleep(0.01)
    assert not task.done()
    world.registration(at=None)
    await asyncio.wait_for(task, 1)
    await moving.__aexit__(None, None, None)


async def test_registration_that_keeps_the_address_stops_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FREED_SECONDS", 0.02)
    world = World()
    control_plane, registration = world.control_plane(), world.registration(at=_OLD)
    with pytest.raises(ConditionError, match="no longer name the former address: reg"):
        async with world.switch.moving(control_plane, to=_NEW):
            pytest.fail("the Secrets would be written now")
    world.check(registration, control_plane)


@pytest.mark.parametrize("endpoint", [None, _NEW], ids=["published for the first time", "stays where it is"])
async def test_first_or_same_address_enqueues_no_registration(endpoint: str | None) -> None:
    world = World()
    world.registration(at=_NEW)
    async with world.switch.moving(world.control_plane(endpoint=endpoint), to=_NEW):
        assert taken(world.triggers.registrations) == set()


@pytest.mark.parametrize("moved", [(_ADMIN,), (_CONTROLLERS,), (_ADMIN, _CONTROLLERS)])
async def test_check_refuses_former_address_after_crash_in_move(moved: tuple[dict[str, str], ...]) -> None:
    world = World()
    for reference in moved:
        world.secret(reference, server=_NEW)
    with pytest.raises(ConditionError, match="is for the address that it moves to") as refusal:
        world.check(world.registration(at=None), world.control_plane())
    assert refusal.value.reason == "EndpointPending"
    for reference in (_ADMIN, _CONTROLLERS):
        world.secret(reference, server=_NEW)
    world.check(world.registration(at=None), world.control_plane(endpoint=_NEW))


async def test_check_keeps_resolved_registration_after_edit_of_secret() -> None:
    world = World()
    world.secret(_ADMIN, server="https://evil.example")
    world.check(world.registration(at=_OLD), world.control_plane())


async def test_registration_with_own_secret_does_not_delay_the_move() -> None:
    world, own_secret = World(), {"name": "own", "namespace": "elsewhere"}
    world.secret(_ADMIN, server=_NEW)
    world.check(world.registration(at=None, secret=own_secret), world.control_plane())
    world.registration(at=_OLD, secret=own_secret)
    async with asyncio.timeout(1), world.switch.moving(world.control_plane(), to=_NEW):
        pass
