"""Registrations of mode Dedicated: processes, rights, and changes of the mode."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kplane.components.names import mcm_name
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    EVENTS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kplane.provider.errors import Forbidden
from kplane.workloads import find_processes

from .conftest import KINDS, pids_of
from .test_ending import followed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

REGISTRATION = "ControlPlaneRegistration"


class Dedicated:
    """Registration of mode Dedicated, with the processes and objects of its mcm."""

    def __init__(self, platform: Any, name: str, *, uid: str, control_plane: str) -> None:
        self.platform = platform
        self.name = name
        self.uid = uid
        self.component = mcm_name(control_plane, uid=uid)

    @property
    def directory(self) -> Path:
        return Path(self.platform.handle.operator_directory, self.component)

    def tree(self) -> dict[str, set[int]]:
        """Return the pids of the processes of its mcm by program."""
        programs = {"mcm": "programs/mcm --registration", "kube-controller-manager": "kube-controller-manager --"}
        return {name: pids_of(self.directory, words) for name, words in programs.items()}

    async def instance(self) -> dict[str, Any]:
        return (await self.platform.status(REGISTRATION, self.name)).get("instance") or {}

    async def condition(self, kind: str) -> tuple[str, str]:
        conditions = (await self.platform.status(REGISTRATION, self.name)).get("conditions") or []
        match = next((item for item in conditions if item["type"] == kind), {})
        return match.get("status", ""), match.get("reason", "")

    async def says(self, kind: str, status: str, reason: str) -> None:
        """Wait until its condition of type `kind` has this status and reason."""
        await self.platform.eventually(lambda: self.condition(kind), lambda found: found == (status, reason))

    async def events(self) -> set[str]:
        """Return the reasons of the Events that its mcm recorded."""
        listed = await self.platform.client.list(
            EVENTS, namespace="default", field_selector=f"involvedObject.uid={self.uid}"
        )
        return {event["reason"] for event in listed.items if event["reportingComponent"] == "mcm"}

    async def runs(self, *, mode: str | None) -> None:
        """Wait until an instance of mode `mode` runs."""

        async def now() -> Any:
            return (await self.instance()).get("mode"), await self.condition("Running")

        await self.platform.eventually(now, lambda found: found == (mode, ("True", "InstanceRunning")))

    async def gone(self) -> None:
        """Wait until the processes, files and RBAC of its mcm are gone."""
        await self.platform.eventually(self.left, lambda found: not found)

    async def left(self) -> list[str]:
        remains = [str(pid) for pid in find_processes(self.directory)] + [str(path) for path in self._paths()]
        for resource in (SERVICE_ACCOUNTS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS):
            listed = await self.platform.client.list(
                resource, label_selector=f"controlplane.kplane.dev/registration={self.name}"
            )
            # A registration has the Role for its Secret in any mode.
            remains += [
                f"{resource} {item['metadata']['name']}"
                for item in listed.items
                if "controlplane.kplane.dev/registration-uid" not in item["metadata"]["labels"]
            ]
        return remains

    def _paths(self) -> list[Path]:
        return [self.directory] if self.directory.exists() else []


async def registered(platform: Any, name: str, *, control_plane: str, mode: str = "Dedicated") -> Dedicated:
    registration = await platform.create(
        REGISTRATION, name, controlPlaneRef={"name": control_plane}, services=["Controllers"], mode=mode
    )
    return Dedicated(platform, name, uid=registration["metadata"]["uid"], control_plane=control_plane)


async def test_dedicated_registration_has_own_processes_until_deletion(platform: Any) -> None:
    await platform.create("ControlPlane", "alone", deletionPolicy="Destroy")
    own = await registered(platform, "alone", control_plane="alone")
    await own.runs(mode="Dedicated")
    # The instance may run before the operator reports its mcm ready.
    await own.says("DedicatedReady", "True", "McmRunning")
    assert {program: len(pids) for program, pids in own.tree().items()} == {"mcm": 1, "kube-controller-manager": 1}
    assert platform.instance("alone") is None
    assert pids_of(platform.handle.mcm_directory, "kube-controller-manager") == set()

    await _may_no_more_than_it_does(platform, own)
    await platform.eventually(own.events, lambda found: "InstanceStarted" in found)

    # The mcm is killed, and its instance ends. Both restart.
    before = own.tree()
    os.kill(min(before["mcm"]), signal.SIGKILL)

    def anew() -> bool:
        now = own.tree()
        return all(len(now[program]) == 1 and not now[program] & before[program] for program in now)

    await platform.eventually(anew)
    await own.runs(mode="Dedicated")

    await platform.delete(REGISTRATION, "alone")
    await own.gone()


async def _may_no_more_than_it_does(platform: Any, own: Dedicated) -> None:
    """Assert that the mcm may read only its registration and the Secret of its registration."""
    await platform.create(REGISTRATION, "other", controlPlaneRef={"name": own.name})
    secret = (await platform.status(REGISTRATION, own.name))["resolvedControllersSecretRef"]
    async with Client(ClusterConfig.load(own.directory / "files" / "kubeconfig"), field_manager="kplane") as mcm:
        assert (await mcm.get(KINDS[REGISTRATION], own.name))["metadata"]["name"] == own.name
        assert (await mcm.get(SECRETS, secret["name"], namespace=secret["namespace"]))["data"]["sa.key"]
        refused = [
            mcm.list(KINDS[REGISTRATION]),
            mcm.get(KINDS[REGISTRATION], "other"),
            mcm.patch(KINDS[REGISTRATION], "other", {"status": {"instance": None}}, subresource="status"),
            mcm.patch(KINDS[REGISTRATION], own.name, {"spec": {"mode": "Shared"}}),
            mcm.get(SECRETS, "control-plane-authorities", namespace=secret["namespace"]),
            mcm.list(SECRETS, namespace=secret["namespace"]),
            mcm.get(KINDS["ControlPlane"], own.name),
        ]
        for request in refused:
            with pytest.raises(Forbidden):
                await request
    await platform.delete(REGISTRATION, "other")


@pytest.mark.slow
async def test_change_of_mode_ends_old_instance_before_new_one_starts(platform: Any) -> None:
    await platform.create("ControlPlane", "turns", deletionPolicy="Destroy")
    own = await registered(platform, "turns", control_plane="turns", mode="Shared")
    async with followed(platform, REGISTRATION, "turns") as history:
        await own.runs(mode=None)
        assert own.tree() == {"mcm": set(), "kube-controller-manager": set()}
        for mode in ("Dedicated", "Shared", "Dedicated"):
            await platform.client.patch(KINDS[REGISTRATION], "turns", {"spec": {"mode": mode}})
            await own.runs(mode="Dedicated" if mode == "Dedicated" else None)
            if mode == "Shared":
                await own.gone()
                await own.says("DedicatedReady", "", "")
            else:
                assert platform.instance("turns") is None
    instances = [observed.get("status", {}).get("instance") for observed in history.seen]
    modes = ["none" if observed is None else observed.get("mode", "Shared") for observed in instances]
    turns = [mode for mode, _ in itertools.groupby(modes)]
    assert turns == ["none", "Shared", "none", "Dedicated", "none", "Shared", "none", "Dedicated"]
    # The control plane is deleted first. Its mcm ends, although the registration stays.
    await platform.delete("ControlPlane", "turns")
    await own.gone()
    await platform.eventually(own.instance, lambda found: found == {})


@pytest.mark.slow
async def test_dedicated_mcm_follows_a_changed_control_plane_ref(platform: Any) -> None:
    for name in ("here", "there"):
        await platform.create("ControlPlane", name, deletionPolicy="Destroy")
    await platform.ready("ControlPlane", "there")
    own = await registered(platform, "moving", control_plane="here")
    await own.runs(mode="Dedicated")
    uid = (await own.instance())["controlPlaneUID"]
    await platform.client.patch(KINDS[REGISTRATION], "moving", {"spec": {"controlPlaneRef": {"name": "there"}}})
    moved = Dedicated(platform, "moving", uid=own.uid, control_plane="there")
    await platform.eventually(moved.instance, lambda found: found.get("controlPlaneUID") not in (None, uid))
    await moved.runs(mode="Dedicated")
    assert not find_processes(own.directory)
    await platform.eventually(lambda: not own.directory.exists())
    assert {program: len(pids) for program, pids in moved.tree().items()} == {"mcm": 1, "kube-controller-manager": 1}
    await platform.delete("ControlPlane", "here")
    await moved.runs(mode="Dedicated")
