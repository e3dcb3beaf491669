"""Many random events over twenty control planes. After them, the instances match the registrations.

`KPLANE_SOAK_SEED` chooses other events, and `KPLANE_SOAK_EVENTS` their number. A failure shows seed and events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.kinds import InstanceKind
from kplane.provider import ClusterConfig
from kplane.provider.providers.kplane import REGISTRATIONS
from kplane.workloads import find_processes
from kplane.workloads.processes.proctable import marked_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("mcm_soak")]

Eventually = Callable[..., Any]

CONTROL_PLANES = 20
ROUND = 25
"""Number of events without a wait between them. After each round, the fleet has to match the registrations."""
DEADLINE_SECONDS = 150.0
SERVICES = (("Controllers",), ("Controllers",), ("Controllers", "Scheduler"))
PROFILES = ("Core", "Nodeless")


@dataclass(frozen=True)
class Wish:
    """Desired state of a registration."""

    at: int
    """Number of the control plane."""
    profile: str
    services: tuple[str, ...]
    ready: bool = True


@dataclass
class Soak:
    """Desired registrations and control planes, and the events that change them."""

    registrations: Any
    mcm: Any
    gates: list[Any]
    tenants: list[Any]
    chance: random.Random
    wishes: dict[str, Wish] = field(default_factory=dict)
    certificates: dict[int, bytes] = field(default_factory=dict)
    """The latest client certificate of each control plane."""
    pids: dict[str, int] = field(default_factory=dict)
    """Pid of the controllers by registration, at the end of the last round."""
    happened: list[str] = field(default_factory=list)

    @property
    def components(self) -> dict[str, str]:
        """Components that have to run, each with the name of its registration."""
        return {
            kind.component(name): name
            for name, wish in self.wanted.items()
            for kind in InstanceKind
            if kind.name.title() in wish.services
        }

    @property
    def wanted(self) -> dict[str, Wish]:
        """Desired states of the registrations that need instances, by name."""
        return {self.registrations.name(stem): wish for stem, wish in self.wishes.items() if wish.ready}

    async def put_secret(self, at: int) -> None:
        """Give a control plane's controllers a new certificate."""
        secret = self.tenants[at].controllers_secret()
        self.certificates[at] = ClusterConfig.from_kubeconfig(secret["kubeconfig"]).client_certificate or b""
        await self.registrations.put_secret(f"cp-{at}", secret)

    async def happen(self, event: str) -> bool:
        """Apply an event to a random registration. Returns whether the event was possible for any registration."""
        stems = [stem for stem in self.wishes if self.wishes[stem].ready]
        free = sorted(set(range(CONTROL_PLANES)) - {wish.at for wish in self.wishes.values()})
        match event:
            case "create" if free:
                stem = f"r{len(self.happened)}"
                await self._wish(stem, Wish(self.chance.choice(free), *self._kind()))
                return self._note(event, stem)
            case "return" if withdrawn := sorted(set(self.wishes) - set(stems)):
                stem = self.chance.choice(withdrawn)
                await self._wish(stem, replace(self.wishes[stem], ready=True))
                return self._note(event, stem)
            case "create" | "return":
                return False
        if not stems:
            return False
        stem = self.chance.choice(stems)
        return await self.change(event, stem, free=free) and self._note(event, stem)

    async def change(self, event: str, stem: str, *, free: Sequence[int] = ()) -> bool:
        """Change a registration, its Secret, its gate or its process. Returns whether that was possible."""
        wish = self.wishes[stem]
        match event:
            case "delete":
                del self.wishes[stem]
                await self.registrations.client.delete(REGISTRATIONS, self.registrations.name(stem))
            case "withdraw":
                self.wishes[stem] = replace(wish, ready=False)
                await self.registrations.withdraw(stem)
            case "switch" if free:
                await self._wish(stem, replace(wish, at=self.chance.choice(free)))
            case "services":
                await self._wish(stem, replace(wish, services=self.chance.choice(SERVICES)))
            case "profile":
                await self._wish(stem, replace(wish, profile=self.chance.choice(PROFILES)))
            case "burst":
                for _ in range(10):
                    await self._wish(stem, Wish(wish.at, *self._kind()))
            case _:
                return await self._disturb(event, stem)
        return True

    async def _disturb(self, event: str, stem: str) -> bool:
        at = self.wishes[stem].at
        match event:
            case "rotate":
                await self.put_secret(at)
            case "shut":
                self.gates[at].shut = True
                self.gates[at].cut()
            case "kill" if (pid := self.pids.pop(self.registrations.name(stem), None)) in self.mcm.instances():
                os.kill(pid, signal.SIGKILL)
            case _:
                return False
        return True

    def open_files(self) -> Counter[str]:
        """Count open files of mcm by kind, without its connections to the management API server."""
        port = self.registrations.client.config.server.rpartition(":")[2]
        return open_files(self.mcm.process.pid, besides=int(port))

    def _kind(self) -> tuple[str, tuple[str, ...]]:
        return self.chance.choice(PROFILES), self.chance.choice(SERVICES)

    async def _wish(self, stem: str, wish: Wish) -> None:
        is_update, self.wishes[stem] = stem in self.wishes, wish
        options = {"secret": f"cp-{wish.at}", "server": self.gates[wish.at].url}
        await (self.registrations.resolve if is_update else self.registrations.add)(
            stem, **options, profile=wish.profile, services=wish.services
        )

    def _note(self, event: str, stem: str) -> bool:
        self.happened.append(f"{event} {stem}")
        return True

    def open_all(self) -> None:
        """Make every control plane reachable."""
        for gate in self.gates:
            gate.shut = False

    def lacking(self) -> list[str]:
        """Describe all differences from the desired state. If there are none, remember the pids."""
        clusters, desired, processes = self.mcm.clusters(), self.wanted, set(self.mcm.instances())
        differences = [f"{name}: is told of" for name in clusters.keys() - desired.keys()]
        for name, wish in desired.items():
            cluster = clusters.get(name, {})
            others = [InstanceKind.SCHEDULER.program] if "Scheduler" in wish.services else []
            actual = (
                cluster.get("state"),
                cluster.get("profile"),
                cluster.get("server"),
                list(cluster.get("others", ())),
            )
            if actual != ("Ready", wish.profile, self.gates[wish.at].url, others):
                differences.append(f"{name}: {actual} {cluster.get('message')} instead of {wish}")
        for component, name in self.components.items():
            file = self.mcm.state / component / "files" / "client.pem"
            if not file.exists() or self.certificates[desired[name].at].strip() not in file.read_bytes():
                differences.append(f"{component}: has not the latest certificate")
        pids = [pid for cluster in clusters.values() for pid in (cluster["pid"], *cluster.get("others", {}).values())]
        if sorted(processes) != sorted(pid for pid in pids if pid is not None):
            differences.append(f"processes {sorted(processes)}, and told of {pids}")
        if not differences:
            self.pids = {name: cluster["pid"] for name, cluster in clusters.items()}
        return differences


WEIGHTS = {
    "create": 9,
    "delete": 5,
    "switch": 8,
    "services": 4,
    "profile": 4,
    "burst": 3,
    "rotate": 6,
    "kill": 6,
    "shut": 4,
    "withdraw": 3,
    "return": 3,
}


def traces(directory: Path) -> list[str]:
    """Return the command lines that contain a directory, including processes without a marker."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{directory}/".encode() in (command := path.read_bytes()):
                commands.append(command.replace(b"\0", b" ").decode())
    return commands


def claimed_ports(directory: Path) -> list[int]:
    """Return the ports that components below a directory have claimed."""
    claims = Path(tempfile.gettempdir()) / f"kplane-ports-{os.geteuid()}"
    numbers = []
    for claim in claims.iterdir():
        with contextlib.suppress(OSError):
            if claim.name.isdigit() and claim.read_text().startswith(f"{directory}/"):
                numbers.append(int(claim.name))
    return sorted(numbers)


def open_files(pid: int, *, besides: int) -> Counter[str]:
    """Count open files of a process by kind, without connections to a port, some of which stay open for a while."""
    connections = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    excluded_sockets = {
        f"socket:[{fields[9]}]" for fields in connections if int(fields[2].rpartition(":")[2], 16) == besides
    }
    kinds: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := str(path.readlink())) not in excluded_sockets:
                kinds[target.partition(":[")[0]] += 1
    return kinds


@contextlib.asynccontextmanager
async def one_each(directory: Path) -> AsyncIterator[None]:
    """Assert that no component has two main processes at any time within the block."""
    duplicates: set[str] = set()

    async def look() -> None:
        while True:
            entries = await asyncio.to_thread(marked_processes, directory)
            counts = Counter(entry.marker for entry in entries if entry.leader)
            duplicates.update(marker for marker, count in counts.items() if count > 1)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert not duplicates


@pytest.fixture
def mcm(mcm_of: Any, api_server: Any) -> Any:
    """mcm with a separate instance Lease for each registration, so that registrations do not share a Lease."""
    return mcm_of(api_server.mcm_kubeconfig, apart=True)


@pytest.fixture
async def soak(mcm: Any, fleet: Any, tenants: Any, gate_to: Any) -> AsyncIterator[Soak]:
    """Twenty control planes on two API servers, each with its own address and credentials."""
    servers = [tenants[name] for name in ("one", "two")]
    async with contextlib.AsyncExitStack() as stack:
        backends = [servers[at % len(servers)] for at in range(CONTROL_PLANES)]
        gates = [await stack.enter_async_context(gate_to(tenant.server)) for tenant in backends]
        seed = int(os.environ.get("KPLANE_SOAK_SEED", "7"))
        soak = Soak(fleet, mcm, gates, backends, random.Random(seed), happened=[f"KPLANE_SOAK_SEED={seed}"])
        for at in range(CONTROL_PLANES):
            await soak.put_secret(at)
        yield soak


async def happen(soak: Soak, *, events: int, settled: Callable[[], Awaitable[None]]) -> None:
    """Apply events, and wait after each round until the fleet matches the registrations."""
    rare = {
        events // 4: ("mcm is ended", lambda: end_and_start(soak.mcm, signal.SIGTERM, status=0)),
        events // 2: ("the API server is killed", lambda: kill_api_server(soak.tenants[0])),
        3 * events // 4: ("mcm is killed", lambda: end_and_start(soak.mcm, signal.SIGKILL, status=-signal.SIGKILL)),
    }
    for index in range(1, events + 1):
        if index in rare:
            description, action = rare[index]
            soak.happened.append(description)
            await asyncio.to_thread(action)
        else:
            while not await soak.happen(*soak.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))):
                pass
        if index % ROUND == 0 or index == events:
            await settled()
            soak.happened.append("settled")


def end_and_start(mcm: Any, number: int, *, status: int) -> None:
    assert mcm.end(number) == status
    mcm.start()


def kill_api_server(tenant: Any) -> None:
    """Kill the processes of an API server. Its runtime starts it again."""
    for pid in find_processes(tenant.directory):
        os.kill(pid, signal.SIGKILL)


async def check_called_for(soak: Soak, *, mcm: Any, eventually: Eventually) -> None:
    """Assert that directories, ports, connections and statuses match the desired instances."""
    components = soak.components
    assert mcm.directories() == sorted(components)
    assert len(traces(mcm.state)) == len(mcm.instances()) == len(components)
    ports = {component: json.loads((mcm.state / component / "address.json").read_text()) for component in components}
    assert claimed_ports(mcm.state) == sorted(address["ports"]["https"] for address in ports.values())
    for stem, wish in soak.wishes.items():
        uid = soak.registrations.uid_at(soak.gates[wish.at].url)
        expected = {("True", "InstanceRunning", uid)} if wish.ready else {("False", "Ended", ""), ("", "", "")}
        await eventually(
            lambda: soak.registrations.told(stem),  # noqa: B023
            lambda told: told in expected,  # noqa: B023
            timeout=DEADLINE_SECONDS,
        )
    in_use = {wish.at for wish in soak.wanted.values()}
    await eventually(
        lambda: {number for number, gate in enumerate(soak.gates) if gate.connections},
        lambda connected: connected == in_use,
        timeout=DEADLINE_SECONDS,
    )


async def check_nothing_left(soak: Soak, *, mcm: Any, had_open: Counter[str], eventually: Eventually) -> None:
    """Assert that the instances have left no processes, files, ports, connections or metrics."""
    assert not mcm.instances()
    assert not traces(mcm.state)
    await eventually(lambda: not mcm.directories() and not claimed_ports(mcm.state))
    tail = soak.registrations.namespace[-10:]  # suffix of the name of every registration
    await eventually(
        lambda: asyncio.to_thread(mcm.get, "/metrics"),
        lambda answer: "process_cpu_seconds_total" in answer[1] and tail not in answer[1],
    )
    await eventually(lambda: not any(gate.connections for gate in soak.gates))
    await eventually(soak.open_files, lambda found: found <= had_open)


@pytest.mark.timeout(900)
async def test_fleet_matches_its_registrations_after_random_events(
    soak: Soak, mcm: Any, eventually: Eventually
) -> None:
    async def settled() -> None:
        soak.open_all()
        await eventually(lambda: asyncio.to_thread(soak.lacking), lambda lacking: not lacking, timeout=DEADLINE_SECONDS)

    mcm.start()
    await eventually(lambda: asyncio.to_thread(mcm.get, "/readyz"), lambda answer: answer[0] == 200)
    files_at_start = soak.open_files()
    try:
        async with one_each(mcm.state):
            await happen(soak, events=int(os.environ.get("KPLANE_SOAK_EVENTS", "200")), settled=settled)
            await check_called_for(soak, mcm=mcm, eventually=eventually)
            for stem in list(soak.wishes):
                await soak.change("delete", stem)
            await settled()
        await check_nothing_left(soak, mcm=mcm, had_open=files_at_start, eventually=eventually)
    except BaseException as error:
        error.add_note(", ".join(soak.happened))
        raise
