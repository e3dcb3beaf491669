"""A shared and a dedicated mcm, as processes, hand a registration over when its mode changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import Client, ClusterConfig, Event, Informer, ProviderError
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from kplane.provider.providers.kplane import REGISTRATIONS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
_GROUP = "rbac.authorization.k8s.io"
_BRIEF: dict[str, Any] = {"quick": True, "lease_seconds": 20}
"""Instance Leases that are short enough for a test to wait for their end."""


class Scene:
    """A registration of control plane `one`, and the shared and the dedicated mcm that may serve it."""

    def __init__(self, fleet: Any, tenant: Any, *, eventually: Eventually) -> None:
        self.fleet = fleet
        self.tenant = tenant
        self.name = fleet.name("shared")
        self.users = {mode: f"{mode.lower()}-{fleet.namespace}" for mode in ("Shared", "Dedicated")}
        """User of the instances of each mode, by which the audit log of the control plane tells them apart."""
        self.announced = [""]
        """Successive modes of the instance in the status of the registration, with "" for a status without instance."""
        self.shared: Any = None
        self.dedicated: Any = None
        self.gate: Any = None
        """Gate between the dedicated mcm and the management cluster."""
        self._eventually = eventually

    async def register(self) -> None:
        await self.fleet.put_secret("dedicated", self.tenant.controllers_secret(user=self.users["Dedicated"]))
        secret = self.tenant.controllers_secret(user=self.users["Shared"])
        await self.fleet.register("shared", secret, server=self.tenant.server)

    async def switch(self, mode: str) -> None:
        """Write the mode as the operator does, and a Secret by which the audit log tells the writers apart."""
        status = {
            "mode": mode,
            "resolvedControllersSecretRef": {"name": mode.lower(), "namespace": self.fleet.namespace},
        }
        await self.fleet.client.patch(REGISTRATIONS, self.name, {"status": status}, subresource="status")

    async def served(self, mode: str) -> None:
        """Wait until the mcm of this mode serves the registration. The other mcm then has no instance."""
        mcm, other = (self.shared, self.dedicated) if mode == "Shared" else (self.dedicated, self.shared)

        def state() -> str:
            with contextlib.suppress(OSError):
                return str(mcm.clusters().get(self.name, {}).get("state"))
            return ""

        await self._eventually(lambda: asyncio.to_thread(state), lambda found: found == "Ready")
        assert not other.instances()
        await self._eventually(lambda: self.turns()[-1:] == [mode])

    async def seen_by(self, mcm: Any) -> None:
        """Wait until an mcm has seen all writes so far. Its log names a registration that is created last."""
        name = self.fleet.name(f"later-{len(self.announced)}")
        await self.fleet.client.create(
            REGISTRATIONS, {"metadata": {"name": name}, "spec": {"controlPlaneRef": {"name": name}}}
        )
        try:
            secret = {"name": f"none-of-{name}", "namespace": self.fleet.namespace}
            status = {
                "ready": True,
                "observedGeneration": 1,
                "resolvedEndpoint": self.tenant.server,
                "resolvedControllersSecretRef": secret,
                "services": ["Controllers"],
            }
            await self.fleet.client.patch(REGISTRATIONS, name, {"status": status}, subresource="status")
            await self._eventually(lambda: secret["name"] in mcm.log.read_text())
        finally:
            await self.fleet.client.delete(REGISTRATIONS, name)

    def note(self, event: Event) -> None:
        registration = event.object
        instance = registration.get("status", {}).get("instance")
        mode = "" if instance is None else instance.get("mode", "Shared")
        if registration["metadata"]["name"] == self.name and self.announced[-1:] != [mode]:
            self.announced.append(mode)

    def said(self) -> list[str]:
        """Return the successive modes of reported instances, without repetitions.

        Fails if a mode follows another mode without an end of its instance.
        """
        for before, after in itertools.pairwise(self.announced):
            assert "" in {before, after}
        return [mode for mode, _ in itertools.groupby(filter(None, self.announced))]

    def turns(self) -> list[str]:
        """Return the successive modes of the writers in the audit log, without repetitions.

        Fails if a turn begins before the last request of the previous turn was answered.
        """
        modes = {user: mode for mode, user in self.users.items()}
        writes = []
        for line in self.tenant.audit.read_text().splitlines(keepends=True):
            # The last line may be incomplete.
            event = json.loads(line) if line.endswith("\n") else {"user": {}}
            if (mode := modes.get(event["user"].get("username"))) is not None:
                writes.append((event["requestReceivedTimestamp"], event["stageTimestamp"], mode))
        turns = [(mode, list(group)) for mode, group in itertools.groupby(sorted(writes), key=lambda write: write[2])]
        for (_, before), (_, after) in itertools.pairwise(turns):
            assert max(answered for _, answered, _ in before) <= after[0][0]
        return [mode for mode, _ in turns]


async def identity(
    client: Client, *, registration: str, namespace: str, secret: str, file: Path, verbs: Sequence[str] = ("patch",)
) -> None:
    """Create the kubeconfig and the rights of a dedicated mcm, which are limited to its registration.

    `verbs` are its verbs for the status.
    """
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "mcm"}}, namespace=namespace)
    subjects = [{"kind": "ServiceAccount", "name": "mcm", "namespace": namespace}]
    names = {"apiGroups": ["controlplane.kplane.dev"], "resourceNames": [registration]}
    rules = [
        {**names, "resources": ["controlplaneregistrations"], "verbs": ["get", "list", "watch"]},
        {**names, "resources": ["controlplaneregistrations/status"], "verbs": list(verbs)},
    ]
    metadata = {"name": f"mcm-{registration}"}
    await client.create(CLUSTER_ROLES, {"metadata": metadata, "rules": rules})
    role = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": metadata["name"]}
    await client.create(CLUSTER_ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": subjects})
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get", "watch"]}]
    await client.create(ROLES, {"metadata": {"name": "mcm"}, "rules": rules}, namespace=namespace)
    role = {"apiGroup": _GROUP, "kind": "Role", "name": "mcm"}
    binding = {"metadata": {"name": "mcm"}, "roleRef": role, "subjects": subjects}
    await client.create(ROLE_BINDINGS, binding, namespace=namespace)
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/mcm/token"
    token = (await client.request("POST", path, body=token_request))["status"]["token"]
    assert client.config.ca_data is not None
    ca = file.with_suffix(".crt")
    ca.write_bytes(client.config.ca_data)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": client.config.server, "certificate-authority": str(ca)}}],
        "users": [{"name": "a", "user": {"token": token}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    file.write_text(json.dumps(document))


@pytest.fixture
async def scene(
    fleet: Any,
    tenants: Any,
    mcm_of: Any,
    api_server: Any,
    gate_to: Any,
    tmp_path: Path,
    eventually: Eventually,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Scene]:
    """Run both mcm with a registration of mode Shared that is served. The parameter has arguments of Mcm."""
    scene = Scene(fleet, tenants["one"], eventually=eventually)
    kubeconfig = tmp_path / "kubeconfig"
    names = {"registration": scene.name, "namespace": fleet.namespace, "secret": "dedicated"}
    await identity(fleet.client, **names, file=kubeconfig)
    options = getattr(request, "param", {})
    scene.shared, scene.dedicated = mcm_of(api_server.mcm_kubeconfig, **options), mcm_of(kubeconfig, **options)
    await scene.register()
    mirror = Informer(fleet.client, REGISTRATIONS, name=scene.name)
    server = ClusterConfig.load(kubeconfig).server
    async with gate_to(server) as scene.gate, asyncio.TaskGroup() as tasks:
        kubeconfig.write_text(kubeconfig.read_text().replace(server, scene.gate.url))
        watch_task = tasks.create_task(mirror.run(scene.note))
        busy_task = tasks.create_task(keep_busy(scene))
        try:
            scene.shared.start()
            scene.dedicated.start(f"--registration={scene.name}")
            await scene.served("Shared")
            await eventually(lambda: scene.dedicated.log.read_text().count("mcm runs"))
            yield scene
        finally:
            watch_task.cancel()
            busy_task.cancel()
            # The dedicated mcm reports the end of its instance when it ends, so it needs gate and rights until then.
            if scene.dedicated.process is not None and scene.dedicated.process.poll() is None:
                assert await asyncio.to_thread(scene.dedicated.end) == 0
            for resource in (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS):
                await fleet.client.delete(resource, f"mcm-{scene.name}")


async def keep_busy(scene: Scene) -> None:
    """Delete a ServiceAccount repeatedly, which makes the instance of the control plane write continuously."""
    async with Client(scene.tenant.config, field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": scene.name}})
        while True:
            with contextlib.suppress(ProviderError):  # already gone, or the machine is too slow for a moment
                await client.delete(SERVICE_ACCOUNTS, "default", namespace=scene.name)
            await asyncio.sleep(0.02)  # interval between deletions, not a wait for a condition


@pytest.mark.timeout(420)
async def test_mode_changes_in_both_directions_without_two_writers(scene: Scene, eventually: Eventually) -> None:
    # An mcm without clusters is ready, so that it is not restarted.
    await eventually(lambda: asyncio.to_thread(scene.dedicated.get, "/readyz"), lambda answer: answer == (200, "ok\n"))
    assert await asyncio.to_thread(scene.dedicated.clusters) == {}
    await scene.switch("Dedicated")
    await scene.served("Dedicated")
    assert set(await asyncio.to_thread(scene.dedicated.clusters)) == {scene.name}
    assert f'mcm_instance_up{{cluster="{scene.name}"' in (await asyncio.to_thread(scene.dedicated.get, "/metrics"))[1]
    await scene.switch("Shared")
    await scene.served("Shared")
    assert scene.said() == scene.turns() == ["Shared", "Dedicated", "Shared"]


@pytest.mark.timeout(600)
async def test_hung_or_killed_mcm_keeps_its_turn(scene: Scene, eventually: Eventually) -> None:
    """The instance of a hung mcm works on. After a kill, only the next run of the mcm reports the end."""
    await scene.switch("Dedicated")
    await scene.served("Dedicated")
    scene.dedicated.process.send_signal(signal.SIGSTOP)
    try:
        await scene.switch("Shared")
        await scene.seen_by(scene.shared)
        assert scene.dedicated.instances()
        assert not scene.shared.instances()
    finally:
        scene.dedicated.process.send_signal(signal.SIGCONT)
    await scene.served("Shared")

    await scene.switch("Dedicated")
    await scene.served("Dedicated")
    await asyncio.to_thread(scene.dedicated.end, signal.SIGKILL)
    await eventually(lambda: not scene.dedicated.instances())
    scene.dedicated.start(f"--registration={scene.name}")
    await scene.served("Dedicated")
    assert scene.said() == scene.turns() == ["Shared", "Dedicated", "Shared", "Dedicated"]


@pytest.mark.slow
@pytest.mark.parametrize("scene", [_BRIEF], indirect=True)
@pytest.mark.timeout(600)
async def test_mode_changes_after_a_kill_when_the_lease_has_run_out(scene: Scene, eventually: Eventually) -> None:
    """The next run reports the end of the instance. To the mcm of the other mode, only the Lease proves it."""
    await scene.switch("Dedicated")
    await scene.served("Dedicated")
    await asyncio.to_thread(scene.dedicated.end, signal.SIGKILL)
    await eventually(lambda: not scene.dedicated.instances())
    await scene.switch("Shared")
    await scene.seen_by(scene.shared)
    assert not scene.shared.instances()
    assert scene.announced[-1] == "Dedicated"
    scene.dedicated.start(f"--registration={scene.name}")
    await scene.served("Shared")

    # The mode changes in the other direction.
    await asyncio.to_thread(scene.shared.end, signal.SIGKILL)
    await eventually(lambda: not scene.shared.instances())

    def waits() -> int:
        sentence = f"registration {scene.name}: waiting until the instance of the other mode has stopped"
        return int(scene.dedicated.log.read_text().count(sentence))

    before = waits()
    await scene.switch("Dedicated")
    await eventually(waits, lambda found: found > before)
    assert not scene.dedicated.instances()
    scene.shared.start()
    await scene.served("Dedicated")
    assert scene.said() == scene.turns() == ["Shared", "Dedicated"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("scene", [_BRIEF], indirect=True)
@pytest.mark.timeout(600)
async def test_shared_mcm_waits_for_a_force_deleted_dedicated_mcm(scene: Scene, eventually: Eventually) -> None:
    """To the operator, a deleted pod has ended. If its node is only cut off, the instance works on."""
    await scene.switch("Dedicated")
    await scene.served("Dedicated")
    scene.gate.flowing.clear()
    try:
        # The operator clears the field when the pod is gone.
        await scene.fleet.client.patch(REGISTRATIONS, scene.name, {"status": {"instance": None}}, subresource="status")
        await scene.switch("Shared")
        foreign = ("False", "ForeignControllerManager")
        await eventually(lambda: scene.fleet.told("shared"), lambda told: told[:2] == foreign)
        assert scene.dedicated.instances()
        assert not scene.shared.instances()
        # The node hangs, and the Lease is not renewed.
        scene.dedicated.process.send_signal(signal.SIGSTOP)
        await scene.served("Shared")
    finally:
        scene.dedicated.process.send_signal(signal.SIGCONT)
        scene.gate.flowing.set()
    await eventually(lambda: asyncio.to_thread(scene.dedicated.clusters), lambda found: found == {})
    assert not scene.dedicated.instances()
    assert scene.said() == scene.turns() == ["Shared", "Dedicated", "Shared"]


async def test_dedicated_mcm_starts_no_instance_it_may_not_announce(
    fleet: Any, tenants: Any, mcm_of: Any, tmp_path: Path, eventually: Eventually
) -> None:
    secret, server = tenants["one"].controllers_secret(), tenants["one"].server
    name, kubeconfig = fleet.name("a"), tmp_path / "kubeconfig"
    names = {"registration": name, "namespace": fleet.namespace, "secret": "a"}
    await identity(fleet.client, **names, file=kubeconfig, verbs=["get"])
    mcm = mcm_of(kubeconfig)
    try:
        await fleet.register("a", secret, server=server)
        await fleet.client.patch(REGISTRATIONS, name, {"status": {"mode": "Dedicated"}}, subresource="status")
        mcm.start(f"--registration={name}")

        def told() -> dict[str, Any]:
            with contextlib.suppress(OSError):
                return mcm.clusters().get(name) or {}
            return {}

        sentence = "failed to announce the instance of registration"
        summary = await eventually(lambda: asyncio.to_thread(told), lambda found: sentence in found.get("message", ""))
        assert summary["state"] == "Pending"
        assert not mcm.instances()
        rules = (await fleet.client.get(CLUSTER_ROLES, f"mcm-{name}"))["rules"]
        rules[1]["verbs"] = ["patch"]
        await fleet.client.patch(CLUSTER_ROLES, f"mcm-{name}", {"rules": rules})
        await eventually(lambda: asyncio.to_thread(told), lambda found: found.get("state") == "Ready")
    finally:
        for resource in (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS):
            await fleet.client.delete(resource, f"mcm-{name}")
