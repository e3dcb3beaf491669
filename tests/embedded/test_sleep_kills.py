"""Kills (-9) at each step of sleep and wake: the data remain, and no second API server runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.embedded import components
from kplane.embedded.cluster import ManagementCluster
from kplane.provider import Client, ClusterConfig, Event, Informer
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import Pace, ProcessRuntime, find_processes

from .behind_gateway import external_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = f"survivor-{os.getpid()}"
"""Unique on this machine, so that no other test has API servers with the same etcd prefix."""
OPERATOR, MCM, GATEWAY, ENVOY, API_SERVER = "operator", "mcm", "gateway controller", "Envoy", "API server"
SAMPLE_SECONDS = 0.1


def api_servers() -> set[int]:
    """Return the pids of all API servers on the keys of this control plane, whichever program started them."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                if f"--etcd-prefix={key_prefix(NAME).rstrip('/')}".encode() in (entry / "cmdline").read_bytes():
                    pids.add(int(entry.name))
    return pids


@dataclass
class World:
    cluster: ManagementCluster
    eventually: Callable[..., Awaitable[Any]]
    config: ClusterConfig
    """Settings of a client that connects through the gateway."""
    seen: dict[str, Any] = field(default_factory=dict)
    """Latest state of the control plane and of its registration, by kind."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    written: set[str] = field(default_factory=set)

    @property
    def status(self) -> dict[str, Any]:
        return self.seen["ControlPlane"].get("status") or {}

    @property
    def sleep(self) -> dict[str, Any] | None:
        return self.status.get("hibernation")

    def note(self, kind: str, event: Event) -> None:
        self.seen[kind] = event.object
        self.news.set()

    def reason(self, kind: str) -> str:
        conditions = [condition for condition in self.status.get("conditions") or () if condition["type"] == kind]
        return conditions[0]["reason"] if conditions else ""

    async def until(self, accept: Callable[[], bool]) -> None:
        """Return as soon as an event makes `accept` true."""
        while not accept():
            self.news.clear()
            await self.news.wait()

    async def ask(self, annotation: str) -> None:
        metadata = {"annotations": {annotation: datetime.now(UTC).isoformat()}}
        await self.cluster.client.patch(CONTROL_PLANES, NAME, {"metadata": metadata})

    async def listens(self) -> bool:
        endpoint = urlsplit(self.status["endpoint"])
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(endpoint.hostname, endpoint.port)
            writer.close()
            return True
        return False

    def pids(self, victim: str) -> set[int]:
        if victim == API_SERVER:
            return api_servers()
        directory = self.cluster.handle.directory
        directories = {
            OPERATOR: directory / "runtime" / components.OPERATOR,
            MCM: directory / "runtime" / components.MCM,
            GATEWAY: directory / "runtime" / components.GATEWAY,
            ENVOY: directory / "gateway" / "runtime" / "envoy",
        }
        return set(find_processes(directories[victim]))

    def kill(self, victim: str) -> None:
        pids = self.pids(victim)
        # An API server may have exited by itself at the same moment.
        assert pids or victim == API_SERVER
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def all_run(self) -> None:
        """Wait until all programs run. The next cycle may kill the same program in its first step."""
        await self.eventually(lambda: all(self.pids(victim) for victim in (OPERATOR, MCM, GATEWAY, ENVOY)))

    async def write(self) -> None:
        """Write an object through the gateway."""
        name = f"written-{len(self.written)}"

        async def put() -> bool:
            async with Client(self.config, field_manager="kplane") as client:
                await client.apply(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}}, force=True)
            return True

        await self.eventually(put)
        self.written.add(name)

    async def read(self) -> set[str]:
        """Read all objects through the gateway, as a client that retries."""

        async def names() -> set[str]:
            async with Client(self.config, field_manager="kplane") as client:
                config_maps = await client.list(CONFIG_MAPS, namespace="default")
            return {item["metadata"]["name"] for item in config_maps.items}

        return await self.eventually(names)

    async def is_awake(self) -> None:
        await self.eventually(lambda: self.status.get("phase") == "Ready" and self.sleep is None)
        await self.eventually(api_servers, lambda found: len(found) == 1)
        await self.eventually(lambda: "instance" in (self.seen["ControlPlaneRegistration"].get("status") or {}))

    async def falls_asleep(self) -> None:
        """Wait until the control plane sleeps. Request sleep again after the operator could not inspect it."""
        asked = ""

        async def asleep() -> bool:
            nonlocal asked
            version = self.seen["ControlPlane"]["metadata"]["resourceVersion"]
            if self.reason("Hibernated") == "KeptAwake" and asked != version:
                asked = version
                await self.ask(SLEEP_REQUESTED_ANNOTATION)
            return self.reason("Hibernated") == "Hibernated" and not api_servers()

        await self.eventually(asleep)

    async def has_no_instance(self) -> None:
        await self.until(lambda: self.sleep is not None)
        await self.until(lambda: not (self.seen["ControlPlaneRegistration"].get("status") or {}).get("instance"))

    async def stops_listening(self) -> None:
        await self.has_no_instance()
        while await self.listens():
            pass

    async def has_ended(self) -> None:
        """Return as soon as the API server has exited, if possible before the operator observes this."""
        for pid in api_servers():
            with contextlib.suppress(ProcessLookupError):
                descriptor, loop, gone = os.pidfd_open(pid), asyncio.get_running_loop(), asyncio.Event()
                loop.add_reader(descriptor, gone.set)
                await gone.wait()
                loop.remove_reader(descriptor)
                os.close(descriptor)

    async def is_asked_to_wake(self) -> None:
        def asked() -> bool:
            value = self.seen["ControlPlane"]["metadata"]["annotations"].get(WAKE_REQUESTED_ANNOTATION)
            since = self.sleep["since"] if self.sleep is not None else None
            return since is None or (value is not None and time(value) > time(since))

        await self.until(asked)

    async def starts(self) -> None:
        await self.until(lambda: self.reason("Hibernated") != "Hibernated")
        await self.eventually(api_servers)


def time(value: str) -> datetime:
    return datetime.fromisoformat(value)


async def at_once(_: World) -> None:
    """Return immediately: this step needs no wait."""


SLEEP_STEPS: dict[str, Callable[[World], Awaitable[None]]] = {
    "requested": at_once,
    "written down": lambda world: world.until(lambda: world.sleep is not None),
    "without instance": World.has_no_instance,
    "API server ends": World.stops_listening,
    "API server has ended": World.has_ended,
}
WAKE_STEPS: dict[str, Callable[[World], Awaitable[None]]] = {
    "requested": World.is_asked_to_wake,
    "written down": lambda world: world.until(lambda: world.reason("Hibernated") != "Hibernated"),
    "API server starts": World.starts,
    "awake": lambda world: world.until(lambda: world.sleep is None),
}
CYCLES = [
    ((OPERATOR, "requested"), (OPERATOR, "requested")),
    ((OPERATOR, "written down"), (OPERATOR, "written down")),
    ((OPERATOR, "without instance"), (OPERATOR, "API server starts")),
    ((OPERATOR, "API server ends"), (OPERATOR, "awake")),
    ((OPERATOR, "API server has ended"), (GATEWAY, "requested")),
    ((API_SERVER, "requested"), (API_SERVER, "API server starts")),
    ((API_SERVER, "written down"), (API_SERVER, "awake")),
    ((API_SERVER, "without instance"), (GATEWAY, "written down")),
    ((API_SERVER, "API server ends"), (GATEWAY, "API server starts")),
    ((MCM, "written down"), (GATEWAY, "awake")),
    ((GATEWAY, "written down"), (ENVOY, "requested")),
    ((ENVOY, "written down"), (ENVOY, "written down")),
    ((GATEWAY, "API server has ended"), (ENVOY, "API server starts")),
    ((ENVOY, "API server has ended"), (ENVOY, "awake")),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    cluster = ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy())
    # Short delays between restarts, as the test kills programs often.
    cluster.runtime = ProcessRuntime(
        directory / "runtime", programs=binaries.directories, pace=Pace(restart_base=0.2, restart_limit=0.5)
    )
    async with cluster, namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)):
        spec = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
        await cluster.client.create(CONTROL_PLANES, {"metadata": {"name": NAME}, "spec": spec})
        spec = {"controlPlaneRef": {"name": NAME}, "services": ["Controllers"]}
        await cluster.client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": NAME}, "spec": spec})
        world = World(
            cluster,
            partial(eventually, timeout=180.0),
            await eventually(lambda: external_config(cluster.client, NAME)),
        )
        async with contextlib.AsyncExitStack() as stack:
            for resource in (CONTROL_PLANES, CONTROL_PLANE_REGISTRATIONS):
                informer = Informer(cluster.client, resource, name=NAME)
                informer.add_handler(partial(world.note, resource.kind))
                stack.push_async_callback(informer.aclose)
                informer.start()
                await informer.wait_synced()
            yield world
        await cluster.client.delete(CONTROL_PLANES, NAME)
        await eventually(lambda: not api_servers())
    assert find_processes(directory) == []
    shutil.rmtree(directory)


@pytest.fixture
def never_two() -> Iterator[None]:
    """Count the API servers on the keys of the control plane repeatedly, and fail if two ever run at once."""
    most, end = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not end.wait(SAMPLE_SECONDS):
            most = max(most, len(api_servers()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    assert most == 1


def told(cycle: tuple[tuple[str, str], tuple[str, str]]) -> str:
    return ", ".join(f"{victim} at {step}" for victim, step in cycle)


@pytest.mark.usefixtures("never_two")
@pytest.mark.parametrize("cycle", CYCLES, ids=told)
async def test_kills_during_sleep_and_wake_lose_no_data(
    world: World, cycle: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    (sleep_victim, sleep_step), (wake_victim, wake_step) = cycle
    await world.all_run()
    await world.write()
    await world.is_awake()

    await world.ask(SLEEP_REQUESTED_ANNOTATION)
    await SLEEP_STEPS[sleep_step](world)
    world.kill(sleep_victim)
    await world.falls_asleep()

    reading = asyncio.create_task(world.read())
    await WAKE_STEPS[wake_step](world)
    world.kill(wake_victim)
    assert await reading >= world.written
    await world.is_awake()
