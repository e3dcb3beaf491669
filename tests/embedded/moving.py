"""A control plane that migrates in an embedded cluster with real programs, and observations of the migration."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.embedded.cluster import ManagementCluster
from kplane.provider import Client, ClusterConfig, Event, Informer
from kplane.provider.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from kplane.workloads import Pace, ProcessRuntime, find_processes

from .behind_gateway import external_config
from .ledger_kinds import CRD, CRDS, WIDGETS

__all__ = ["Mover", "moving_cluster", "one_controller_manager"]

_LOGS: Final = ("runtime/controlplane-operator/log", "gateway/runtime/envoy/log")
_SHOWN: Final = 8000
_LOOK_SECONDS: Final = 0.1


@dataclass
class Mover:
    """A control plane behind the gateway."""

    cluster: ManagementCluster
    name: str
    eventually: Callable[..., Awaitable[Any]]
    config: ClusterConfig
    seen: dict[str, Any] = field(default_factory=dict)
    """Latest state of the control plane and of its registration, by kind."""
    steps: list[str] = field(default_factory=list)
    """Steps of the latest migration that a watch delivered."""
    former: str | None = None
    """Start time of the migration before the latest."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> dict[str, Any]:
        return self.seen["ControlPlane"].get("status") or {}

    @property
    def migration(self) -> dict[str, Any]:
        return self.status.get("migration") or {}

    @property
    def step(self) -> str | None:
        return self.migration.get("step")

    @property
    def mode(self) -> str:
        return str(self.status["home"]["mode"])

    def note(self, kind: str, event: Event) -> None:
        self.seen[kind] = event.object
        if kind == "ControlPlane" and self.migration.get("startedTime") != self.former:
            self.steps += [self.step] if self.step is not None and self.steps[-1:] != [self.step] else []
        self.news.set()

    async def until(self, accept: Callable[[], bool], *, timeout: float = 120.0) -> None:
        """Return as soon as an event makes `accept` true."""
        try:
            async with asyncio.timeout(timeout):
                while not accept():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise AssertionError(f"not in {timeout} s, after {self.steps}: {self.status}") from None

    async def patch(self, **spec: Any) -> None:
        await self.cluster.client.patch(CONTROL_PLANES, self.name, {"spec": spec})

    async def ask(self, mode: str) -> None:
        """Start a migration to `mode`, or roll back."""
        self.forget_steps()
        await self.patch(mode=mode)

    def forget_steps(self) -> None:
        """Clear the steps, and record only steps of the next migration."""
        self.former = self.migration.get("startedTime")
        self.steps.clear()

    async def arrives(self, mode: str, *, step: str = "Completed", timeout: float = 120.0) -> dict[str, Any]:
        """Wait until the home has this mode and the migration this step. Returns `status.migration`."""
        await self.until(lambda: self.mode == mode and self.steps[-1:] == [step], timeout=timeout)
        return self.migration

    async def controllers_work(self) -> None:
        """Wait until kube-controller-manager has created the ServiceAccount of a new namespace."""
        body = {"metadata": {"generateName": "new-"}}
        async with Client(self.config, field_manager="kplane") as client:
            # A killed API server that starts again refuses all requests until it has read the RBAC objects.
            namespace = await self.eventually(lambda: client.create(NAMESPACES, body), timeout=90)
            name = namespace["metadata"]["name"]
            await self.eventually(lambda: client.exists(SERVICE_ACCOUNTS, "default", namespace=name), timeout=90)


@contextlib.asynccontextmanager
async def moving_cluster(
    binaries: Binaries,
    *,
    name: str,
    eventually: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
    window: str = "2s",
    pace: Pace | None = None,
    operator_arguments: Sequence[str] = (),
) -> AsyncIterator[Mover]:
    """Run a management cluster with a gateway, and a control plane with controllers that can migrate."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    cluster = ManagementCluster(
        directory, binaries=binaries, fsync=False, gateway=find_envoy(), operator_arguments=operator_arguments
    )
    if pace is not None:
        cluster.runtime = ProcessRuntime(directory / "runtime", programs=binaries.directories, pace=pace)
    async with cluster, namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)):
        try:
            spec: dict[str, Any] = {"deletionPolicy": "Destroy", "migration": {"rollbackWindow": window}}
            await cluster.client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": spec})
            spec = {"controlPlaneRef": {"name": name}, "services": ["Controllers"]}
            await cluster.client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
            config = await eventually(lambda: external_config(cluster.client, name), timeout=90)
            mover = Mover(cluster, name, eventually, config)
            async with _followed(mover):
                await mover.until(lambda: mover.status.get("phase") in {"Ready", "Hibernated"}, timeout=90)
                await _serve_widgets(mover)
                await mover.controllers_work()
                yield mover
        finally:
            # Shown if a test has failed.
            for log in _LOGS:
                sys.stdout.write((directory / log).read_text()[-_SHOWN:])
    assert find_processes(directory) == []
    shutil.rmtree(directory)


@contextlib.asynccontextmanager
async def _followed(mover: Mover) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for resource in (CONTROL_PLANES, CONTROL_PLANE_REGISTRATIONS):
            informer = Informer(mover.cluster.client, resource, name=mover.name)
            informer.add_handler(partial(mover.note, resource.kind))
            stack.push_async_callback(informer.aclose)
            informer.start()
            await informer.wait_synced()
        await mover.until(lambda: len(mover.seen) == 2)
        yield


async def _serve_widgets(mover: Mover) -> None:
    async with Client(mover.config, field_manager="kplane") as client:
        await mover.eventually(lambda: client.apply(CRDS, CRD, force=True))
        await mover.eventually(lambda: client.list(WIDGETS), lambda found: found.items == [])


@contextlib.contextmanager
def one_controller_manager(mover: Mover) -> Iterator[Callable[[], bool]]:
    """Count the processes of kube-controller-manager repeatedly. Yields a function that is true while none runs.

    Raises AssertionError at the end if two processes ever ran at the same time.
    """
    directory, most, end = mover.cluster.handle.mcm_directory, 0, threading.Event()

    def running() -> int:
        return len([pid for pid in find_processes(directory) if _program(pid) == "kube-controller-manager"])

    def look() -> None:
        nonlocal most
        while not end.wait(_LOOK_SECONDS):
            most = max(most, running())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: running() == 0
    finally:
        end.set()
        thread.join()
    assert most == 1


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""
