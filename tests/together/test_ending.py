"""Deletion of a control plane with its instances: the order of steps, and no data afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kplane.provider import Client, Event, Informer, NotFound, Resource

from .conftest import KINDS, pids_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


class History:
    """Versions of an object that a watch observed."""

    def __init__(self, client: Client, resource: Resource, name: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self.gone = False
        self._mirror = Informer(client, resource, name=name)

    async def follow(self) -> None:
        def note(event: Event) -> None:
            self.gone = event.kind == "DELETED"
            if not self.gone:
                self.seen.append(event.object)

        await self._mirror.run(note)

    def reasons(self, condition: str) -> list[str]:
        all_reasons = [_condition(version, condition).get("reason", "") for version in self.seen]
        return [reason for reason, _ in itertools.groupby(filter(None, all_reasons))]


def _condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = found.get("status", {}).get("conditions", ())
    return next((item for item in conditions if item["type"] == kind), {})


@contextlib.asynccontextmanager
async def followed(platform: Any, kind: str, name: str) -> AsyncIterator[History]:
    history = History(platform.client, KINDS[kind], name)
    task = asyncio.create_task(history.follow())
    try:
        await platform.eventually(lambda: history.seen)
        yield history
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest_asyncio.fixture(loop_scope="module")
async def served(platform: Any) -> AsyncIterator[str]:
    """Control plane with data and a running instance. Its registration outlives the control plane."""
    name = "ending"
    await platform.create("ControlPlane", name, deletionPolicy="Destroy")
    await platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    await platform.ready("ControlPlaneRegistration", name)
    await platform.running(name)

    async def told() -> Any:
        return await platform.status("ControlPlaneRegistration", name)

    await platform.eventually(told, lambda status: _condition({"status": status}, "Running").get("status") == "True")
    assert await keys(platform, name) > 100
    yield name
    for kind in ("ControlPlaneRegistration", "ControlPlane"):
        await platform.delete(kind, name)


async def keys(platform: Any, path: str) -> int:
    return int(await platform.handle.tenants_etcd.count(f"/clusters/{path}/"))


async def test_instance_ends_before_its_control_plane_is_revoked(platform: Any, served: str) -> None:
    uid = (await platform.status("ControlPlaneRegistration", served))["controlPlaneUID"]
    async with (
        followed(platform, "ControlPlane", served) as control_plane,
        followed(platform, "ControlPlaneRegistration", served) as registration,
    ):
        await platform.delete("ControlPlane", served)
        await platform.eventually(lambda: control_plane.gone)
        await platform.eventually(lambda: registration.reasons("Running")[-1] == "Ended")
    order = ["RegistrationsPending", "InstancesEnding", "RevokingCredentials", "DeletingData", "VerifyingEmpty"]
    steps = control_plane.reasons("Deleting")
    assert [step for step in order if step in steps] == [step for step in steps if step in order]
    # The deletion skips the wait for an instance that ends at once.
    assert {"RevokingCredentials", "DeletingData"} <= set(steps)
    ready = [_condition(observed, "Ready") for observed in control_plane.seen if _condition(observed, "Deleting")]
    assert {(observed["status"], observed["reason"]) for observed in ready} == {("False", "Deleting")}

    def version(found: dict[str, Any]) -> int:
        return int(found["metadata"]["resourceVersion"])

    # Both objects are in the same etcd, so their resource versions show the order.
    ended = next(observed for observed in registration.seen if _condition(observed, "Running").get("reason") == "Ended")
    withdrawn = next(observed for observed in registration.seen if not observed["status"]["ready"])
    revoked = next(
        observed
        for observed in control_plane.seen
        if _condition(observed, "Deleting").get("reason") == "RevokingCredentials"
    )
    assert withdrawn["status"]["instance"]["controlPlaneUID"] == uid
    assert "instance" not in ended["status"]
    assert version(withdrawn) < version(ended) < version(revoked)
    assert await keys(platform, served) == 0
    assert platform.instance(served) is None


@pytest.mark.slow
async def test_instance_of_a_hanging_mcm_restores_no_deleted_data(platform: Any, served: str) -> None:
    """mcm hangs. The deletion continues after its timeout. The remaining instance has no access any more."""
    [mcm] = pids_of(platform.handle.directory, "kplane.mcm.main")
    [instance] = pids_of(platform.handle.mcm_directory, "kube-controller-manager")
    os.kill(mcm, signal.SIGSTOP)
    try:
        async with followed(platform, "ControlPlane", served) as control_plane:
            await platform.delete("ControlPlane", served)
            await platform.eventually(lambda: control_plane.gone)
        assert "InstancesEnding" in control_plane.reasons("Deleting")
        message = f"gone on after 30 s without a confirmation that instances have ended, of registrations {served}"
        assert message in _condition(control_plane.seen[-1], "Deleting")["message"]
        assert Path(f"/proc/{instance}").exists()
        assert await keys(platform, served) == 0
    finally:
        os.kill(mcm, signal.SIGCONT)
    await platform.eventually(lambda: platform.instance(served) is None)

    async def told() -> Any:
        return _condition({"status": await platform.status("ControlPlaneRegistration", served)}, "Running")

    await platform.eventually(told, lambda found: found["reason"] == "Ended")
    assert not Path(f"/proc/{instance}").exists()
    assert await keys(platform, served) == 0


@pytest.mark.slow
async def test_recreated_control_plane_gets_a_new_instance(platform: Any, served: str) -> None:
    """The registration is not ready until a control plane of the same name, with another uid, is ready."""
    before = (await platform.status("ControlPlaneRegistration", served))["controlPlaneUID"]
    pid = await platform.running(served)
    async with followed(platform, "ControlPlaneRegistration", served) as registration:
        await platform.delete("ControlPlane", served)
        await platform.create("ControlPlane", served, deletionPolicy="Destroy")
        status = await platform.ready("ControlPlaneRegistration", served)
        await platform.running(served, other_than=pid)
        after = status["controlPlaneUID"]
        await platform.eventually(
            lambda: registration.seen[-1]["status"].get("instance", {}).get("controlPlaneUID") == after
        )
    assert after != before
    uids = [observed["status"].get("controlPlaneUID", "") for observed in registration.seen]
    assert [uid for uid, _ in itertools.groupby(uids)] == [before, "", after]
    instance_uids = [
        observed["status"].get("instance", {}).get("controlPlaneUID", "") for observed in registration.seen
    ]
    assert [uid for uid, _ in itertools.groupby(instance_uids)] == [before, "", after]


@pytest.mark.slow
async def test_deletion_waits_for_instance_of_deleted_registration(platform: Any) -> None:
    """With `--cascade=foreground` and a slow mcm, the registration is deleted while its instance still runs."""
    name = "collected"
    await platform.create("ControlPlaneClass", name, defaultServices=["Controllers"], deletionPolicy="Destroy")
    await platform.create("ControlPlane", name, classRef={"name": name})
    await platform.ready("ControlPlaneRegistration", name)
    pid = await platform.running(name)
    [mcm] = pids_of(platform.handle.directory, "kplane.mcm.main")
    os.kill(mcm, signal.SIGSTOP)
    try:
        async with followed(platform, "ControlPlane", name) as history:
            await platform.client.delete(KINDS["ControlPlane"], name, propagation="Foreground")
            # The garbage collector may observe the owner too late to delete the registration.
            with contextlib.suppress(NotFound):
                await platform.client.delete(KINDS["ControlPlaneRegistration"], name)

            def waited_for() -> bool:
                return "which is gone already" in _condition(history.seen[-1], "Deleting").get("message", "")

            await platform.eventually(waited_for)
            assert "RevokingCredentials" not in history.reasons("Deleting")
            assert await keys(platform, name) > 100
            os.kill(mcm, signal.SIGCONT)
            await platform.eventually(lambda: not Path(f"/proc/{pid}").exists())
            await platform.eventually(lambda: history.gone)
            assert "RevokingCredentials" in history.reasons("Deleting")
    finally:
        os.kill(mcm, signal.SIGCONT)
    assert await keys(platform, name) == 0
