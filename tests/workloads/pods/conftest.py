"""A real API server with the real controllers of workloads. The tests write the status of pods, as a kubelet does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
import uvloop

from kplane.embedded.credentials import ADMINISTRATOR_GROUPS, Credentials
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES, PODS
from kplane.provider.client.watch import Watch
from kplane.workloads import FILES, Component, File, Lifetime, Phase, Port, Probe, ProcessRuntime, Resources
from kplane.workloads.pods import Image, Placement, PodRuntime, PodSettings


def pytest_asyncio_loop_factories(config, item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


SETTINGS = PodSettings(
    images={"server": Image("registry.example/server:1.2.3", capabilities=("NET_BIND_SERVICE",))},
    ports={"https": 6443, "client": 2379},
)
CONTROLLERS = "deployment-controller,replicaset-controller,statefulset-controller,garbage-collector-controller"


def place(component: str) -> Placement:
    """Return the placement of a component, whose name is "<namespace>--<name of the objects>"."""
    namespace, _, name = component.partition("--")
    return Placement(namespace=namespace, name=name)


def server(name: str, **fields: Any) -> Component:
    values = {
        "args": (f"--config={FILES}/config", "--literal=$(NOT_A_VARIABLE)"),
        "files": {"config": File(b"one"), "tls.crt": File(b"certificate", reloaded=True)},
        "env": {"GOGC": "50"},
        "ports": (Port(number=6443, name="https"),),
        "readiness": Probe(port="https", path="/readyz", ca="tls.crt"),
        "resources": Resources(cpu_request="100m", memory_request="64Mi", memory_limit="128Mi"),
        **fields,
    }
    return Component(name=name, program="server", **values)


class Cluster:
    """The management cluster. Its methods change pods in place of a kubelet."""

    def __init__(self, client: Client, eventually: Callable) -> None:
        self.client = client
        self.eventually = eventually

    @contextlib.asynccontextmanager
    async def runtime(self, *, end_seconds: float = 120.0, **changes: Any) -> AsyncIterator[PodRuntime]:
        settings = dataclasses.replace(SETTINGS, **changes)
        async with PodRuntime(self.client, place=place, settings=settings, end_seconds=end_seconds) as runtime:
            await runtime.synced()
            yield runtime

    async def namespace(self, name: str, **labels: str) -> str:
        await self.client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        return name

    async def pods(self, namespace: str) -> list[dict[str, Any]]:
        return (await self.client.list(PODS, namespace=namespace)).items

    async def pod(self, namespace: str, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
        """Wait until a namespace has exactly one pod, not counting the pods named in `but`. Returns this pod."""

        async def others() -> list[dict[str, Any]]:
            return [pod for pod in await self.pods(namespace) if pod["metadata"]["name"] not in but]

        return (await self.eventually(others, lambda found: len(found) == 1))[0]

    async def say(self, pod: dict[str, Any], **status: Any) -> None:
        """Write the status of a pod, as a kubelet does."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        await self.client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")

    async def run_pod(self, pod: dict[str, Any]) -> None:
        started = "2026-01-01T00:00:00Z"
        await self.say(
            pod,
            phase="Running",
            conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}],
            containerStatuses=[_container(state={"running": {"startedAt": started}}, ready=True)],
        )

    async def hold(self, pod: dict[str, Any], *, held: bool = True) -> None:
        """Keep a deleted pod in the API, as a slow node does. `held=False` lets the pod go."""
        finalizers = {"metadata": {"finalizers": ["example.com/held"] if held else []}}
        with contextlib.suppress(NotFound):
            await self.client.patch(PODS, pod["metadata"]["name"], finalizers, namespace=pod["metadata"]["namespace"])

    async def phase(self, runtime: PodRuntime, name: str, phase: Phase) -> Any:
        return await self.eventually(lambda: runtime.state(name), lambda state: state.phase is phase)


def _container(*, state: dict[str, Any], ready: bool, restarts: int = 0, last: dict[str, Any] | None = None) -> Any:
    return {
        "name": "server",
        "image": "registry.example/server:1.2.3",
        "imageID": "",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        **({"lastState": last} if last else {}),
    }


@pytest.fixture
def lag(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """`lag(True)` delays the events of every watch until `lag(False)`."""
    open_gate = asyncio.Event()
    open_gate.set()
    read = Watch.read

    async def late(watch: Watch) -> list[bytes]:
        lines = await read(watch)
        await open_gate.wait()
        return lines

    monkeypatch.setattr(Watch, "read", late)
    yield lambda lags: open_gate.clear() if lags else open_gate.set()
    open_gate.set()


@pytest.fixture
def container() -> Callable[..., Any]:
    """The status of the only container of a pod."""
    return _container


@pytest.fixture(scope="module")
def controllers(api_server: Handle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controllers of workloads. The API server of the session has no controllers."""
    credentials = Credentials(api_server.directory / "credentials", host="127.0.0.1")
    kubeconfig = credentials.kubeconfig(api_server.server, user="controllers", groups=ADMINISTRATOR_GROUPS)
    processes = ProcessRuntime(tmp_path_factory.mktemp("controllers"), programs=api_server.programs)

    async def start() -> None:
        await processes.__aenter__()
        address = await processes.reserve("controllers", ports=["https"])
        await processes.apply(
            Component(
                name="controllers",
                program="kube-controller-manager",
                args=(
                    f"--kubeconfig={FILES}/kubeconfig",
                    f"--controllers={CONTROLLERS}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={address.ports['https']}",
                    "--leader-elect=false",
                ),
                files={"kubeconfig": File(kubeconfig)},
                lifetime=Lifetime.BOUND,
            )
        )

    # The controllers have their own event loop, because the event loop of a test ends with the test.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())
        yield
        runner.run(processes.__aexit__(None, None, None))


@pytest.fixture
async def cluster(api_server: Handle, controllers: None, eventually: Callable) -> AsyncIterator[Cluster]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield Cluster(client, eventually)


@pytest.fixture
async def idle_cluster(api_server: Handle, eventually: Callable) -> AsyncIterator[Cluster]:
    """A cluster without controllers of workloads, so that its workloads get no pods."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield Cluster(client, eventually)
