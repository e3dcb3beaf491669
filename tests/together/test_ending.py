"""The end of a control plane with everything that runs for it: in order, and nothing comes back to life."""

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
    """What one object said of itself, as far as a watch tells."""

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
        told = [_condition(found, condition).get("reason", "") for found in self.seen]
        return [reason for reason, _ in itertools.groupby(filter(None, told))]


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
    """A control plane with data, and an instance at work on it, by a registration that outlives it."""
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


async def test_the_instance_ends_before_anything_of_its_control_plane(platform: Any, served: str) -> None:
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
    # An instance that ends at once is never waited for.
    assert {"RevokingCredentials", "DeletingData"} <= set(steps)
    ready = [_condition(found, "Ready") for found in control_plane.seen if _condition(found, "Deleting")]
    assert {(found["status"], found["reason"]) for found in ready} == {("False", "Deleting")}

    def version(found: dict[str, Any]) -> int:
        return int(found["metadata"]["resourceVersion"])

    # One etcd keeps both, and its versions say what was first.
    ended = next(found for found in registration.seen if _condition(found, "Running").get("reason") == "Ended")
    withdrawn = next(found for found in registration.seen if not found["status"]["ready"])
    revoked = next(
        found for found in control_plane.seen if _condition(found, "Deleting").get("reason") == "RevokingCredentials"
    )
    assert withdrawn["status"]["instance"]["controlPlaneUID"] == uid
    assert "instance" not in ended["status"]
    assert version(withdrawn) < version(ended) < version(revoked)
    assert await keys(platform, served) == 0
    assert platform.instance(served) is None


@pytest.mark.slow
async def test_an_instance_that_nobody_ends_brings_nothing_back_to_life(platform: Any, served: str) -> None:
    """mcm hangs. The removal waits for its time, goes on, and whoever still works finds every door shut."""
    [mcm] = pids_of(platform.handle.directory, "kplane.mcm.main")
    [instance] = pids_of(platform.handle.mcm_directory, "kube-controller-manager")
    os.kill(mcm, signal.SIGSTOP)
    try:
        async with followed(platform, "ControlPlane", served) as control_plane:
            await platform.delete("ControlPlane", served)
            await platform.eventually(lambda: control_plane.gone)
        assert "InstancesEnding" in control_plane.reasons("Deleting")
        said = f"gone on after 30 s without a confirmation that instances have ended, of registrations {served}"
        assert said in _condition(control_plane.seen[-1], "Deleting")["message"]
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
async def test_the_next_control_plane_of_the_name_gets_an_instance_of_its_own(platform: Any, served: str) -> None:
    """From the deletion on the registration is not ready, until the next one is: of the same name, with another uid."""
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
    uids = [found["status"].get("controlPlaneUID", "") for found in registration.seen]
    assert [uid for uid, _ in itertools.groupby(uids)] == [before, "", after]
    working = [found["status"].get("instance", {}).get("controlPlaneUID", "") for found in registration.seen]
    assert [uid for uid, _ in itertools.groupby(working)] == [before, "", after]


@pytest.mark.slow
async def test_the_instance_of_a_registration_that_was_collected_first_is_waited_for(platform: Any) -> None:
    """As `--cascade=foreground` has it, where mcm is slow: the registration goes, and its instance is there still."""
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
            # Where garbage collection saw its owner too late to do it.
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
