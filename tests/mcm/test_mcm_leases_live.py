"""The Lease in a control plane keeps instances and programs outside the fleet from writing at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import Holder, TenantLease
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster, ClusterConfig

from .start_gate_world import released
from .writers import Span, kept_busy, signing_program, spans

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]

_PATIENCE = 120.0
"""Timeout of each wait, long enough for a busy machine."""


class Scene:
    """Control plane `two`, mcm, and a kube-controller-manager that is started by hand."""

    def __init__(
        self, directory: Path, *, prefix: str, fleet: Any, tenant: Any, mcm: Any, binaries: Any, eventually: Eventually
    ) -> None:
        self.fleet = fleet
        self.tenant = tenant
        self.mcm = mcm
        self.host = f"{socket.gethostname()}_"
        """Prefix of the identities of all holders on this machine."""
        self._directory = directory
        self._prefix = prefix
        self._binaries = binaries
        self._eventually = eventually

    async def register(self, stem: str) -> str:
        name: str = await self.fleet.register(stem, self.tenant.controllers_secret(), server=self.tenant.server)
        return name

    async def works(self, stem: str) -> str:
        """Wait until the instance of a registration has written. Returns the name of this writer."""

        def pid() -> Any:
            cluster = self.mcm.clusters().get(self.fleet.name(stem), {})
            return cluster.get("pid") if cluster.get("state") == "Ready" else None

        number = await self._eventually(lambda: asyncio.to_thread(pid), timeout=_PATIENCE)
        return await self.writes(f"mcm.{number}")

    async def writes(self, writer: str) -> str:
        await self._eventually(lambda: [span for span in self.spans() if span.writer == writer], timeout=_PATIENCE)
        return writer

    async def waits(self, stem: str, *, holder: str) -> None:
        """Wait until a registration names the holder of the Lease and the remedy."""

        async def condition() -> dict[str, Any]:
            running = await self.fleet.condition(stem)
            return running if running.get("reason") == "ForeignControllerManager" else {}

        running = await self._eventually(condition, lambda found: holder in found.get("message", ""), timeout=_PATIENCE)
        assert "holds the Lease kube-system/kube-controller-manager; stop it" in running["message"]
        assert running["status"] == "False"

    @contextlib.contextmanager
    def started_by_hand(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run kube-controller-manager with leader election, as by default, but with shorter waits."""
        directory = self._directory / "by-hand"
        program = signing_program(directory, name=f"{self._prefix}.hand", binaries=self._binaries)
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_bytes(self.tenant.kubeconfig(user="admin", groups=("system:masters",)))
        command = [
            *(program, f"--kubeconfig={kubeconfig}", f"--cert-dir={directory}", "--secure-port=0", "-v=4"),
            *("--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s"),
        ]
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    async def is_refused(self) -> None:
        """Wait until the program that was started by hand has found the Lease taken several times."""
        log = self._directory / "by-hand" / "log"
        await self._eventually(lambda: log.read_text().count("Lease is held by") > 2, timeout=_PATIENCE)

    def spans(self) -> list[Span]:
        return spans(self.tenant.audit, prefix=self._prefix)

    def alone(self, *writers: str) -> None:
        """Assert that exactly `writers` have written, in this order and without overlap."""
        writes = self.spans()
        assert [span.writer for span in writes] == list(writers)
        for before, after in itertools.pairwise(writes):
            assert before.ended < after.began, writes


@pytest.fixture
def scene(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, binaries: Any, tmp_path: Path, eventually: Eventually
) -> Scene:
    prefix = fleet.namespace
    signing_program(tmp_path / "mcm", name=f"{prefix}.mcm", binaries=binaries)
    programs = (tmp_path / "mcm", binaries.path("kube-controller-manager").parent)
    mcm = mcm_of(api_server.mcm_kubeconfig, programs=programs, quick=True, lease_seconds=20)
    names = {"fleet": fleet, "tenant": tenants["two"], "mcm": mcm, "binaries": binaries, "eventually": eventually}
    return Scene(tmp_path, prefix=prefix, **names)


@pytest.mark.slow
async def test_second_registration_and_manual_program_wait_for_the_lease(scene: Scene) -> None:
    """The operator would refuse the second registration. The test resolves it without the operator."""
    scene.mcm.start()
    async with kept_busy(scene.tenant.config, name=scene.fleet.namespace):
        await scene.register("first")
        first = await scene.works("first")
        await scene.register("second")
        await scene.waits("second", holder=scene.host)
        await scene.fleet.withdraw("first")
        second = await scene.works("second")
        with scene.started_by_hand() as process:
            await scene.is_refused()
            assert await scene.works("second") == second
            await scene.fleet.withdraw("second")
            hand = await scene.writes(f"hand.{process.pid}")
            await scene.fleet.resolve("second", server=scene.tenant.server, secret="second")
            await scene.waits("second", holder=scene.host)
        third = await scene.works("second")
    scene.alone(first, second, hand, third)


@pytest.mark.slow
async def test_hung_mcm_loses_its_instance_before_a_manual_program_writes(
    scene: Scene,
) -> None:
    """This mcm has no shard Leases. When its process continues, it waits until the Lease is free."""
    scene.mcm.start()
    async with kept_busy(scene.tenant.config, name=scene.fleet.namespace):
        await scene.register("first")
        first = await scene.works("first")
        with scene.started_by_hand() as process:
            await scene.is_refused()
            scene.mcm.process.send_signal(signal.SIGSTOP)
            try:
                hand = await scene.writes(f"hand.{process.pid}")
                assert not scene.mcm.instances()
            finally:
                scene.mcm.process.send_signal(signal.SIGCONT)
            await scene.waits("first", holder=scene.host)
        after = await scene.works("first")
    scene.alone(first, hand, after)


@pytest.mark.parametrize("program", ["kube-controller-manager", "kube-scheduler"])
async def test_default_role_of_a_program_suffices_for_its_lease(tenants: Any, program: str) -> None:
    tenant = tenants["two"]
    holder = Holder(name="mcm-0", fleet=None, uid=lambda _: None)

    @contextlib.asynccontextmanager
    async def looks(user: str) -> AsyncIterator[BlockingReason | None]:
        config = ClusterConfig.from_kubeconfig(tenant.kubeconfig(user=user))
        lease = TenantLease(Cluster("a", config=config), program=program, holder=holder)
        async with released(lease):
            for _ in range(2):  # acquire the Lease, then renew it
                reason = await lease.acquire(config)
            yield reason

    for _ in range(2):  # create the Lease, then acquire it after its release
        async with looks(f"system:{program}") as reason:
            assert reason is None
    async with looks("jane") as reason:
        assert reason is not None
        assert reason.reason is Reason.CANNOT_START
        assert f"failed to hold the Lease kube-system/{program}" in reason.message
        assert "allow the identity in its Secret to get, create and update this Lease" in reason.message
