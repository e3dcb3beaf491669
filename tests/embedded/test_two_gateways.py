"""Two gateways of the same control plane, one of which receives all changes with a delay."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from kplane.api import ControlPlane, is_true
from kplane.api.names import GATEWAY_NAMESPACE, gateway_secret_name, management_namespace
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.gateway.presence import read_newest_progress
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.primitives import issue_client
from kplane.provider import ApiError, Client, ClusterConfig, Event, Informer, NotFound, ProviderError
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS

from .behind_gateway import external_config, secret
from .lagging_gateway import LaggingGateway, lagging_gateway
from .moving import Mover, moving_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]


_CACHE_SECONDS: Final = 5.0
"""Maximum age of lists at resourceVersion 0. A sealed API server answers them from its cache until it has ended."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries, name="mover", eventually=eventually, namespaces_go_at_once=namespaces_go_at_once
    ) as mover:
        yield mover


@pytest_asyncio.fixture(loop_scope="module")
async def lagging(
    mover: Mover, tmp_path: Path, hold_port: Callable[[], int], eventually: Callable[..., Any]
) -> AsyncIterator[LaggingGateway]:
    async with lagging_gateway(mover.cluster.handle, tmp_path, hold_port=hold_port, lag_seconds=0.0) as lagging:
        await eventually(lagging.process.ready)
        lagging.lag_seconds = 1.0
        yield lagging


async def _code(config: ClusterConfig, *, timeout_seconds: float = 30.0) -> int | str:
    async with Client(config, field_manager="kplane", timeout_seconds=timeout_seconds) as client:
        try:
            await client.list(NAMESPACES)
        except ApiError as error:
            return error.status
        except ProviderError as error:
            return str(error)
        return 200


async def _seen(client: Client, name: str, accept: Callable[[ControlPlane], bool]) -> None:
    """Return as soon as an event makes `accept` true."""
    found = asyncio.Event()

    def look(event: Event) -> None:
        if event.kind != "DELETED" and accept(ControlPlane.model_validate(event.object)):
            found.set()

    informer = Informer(client, CONTROL_PLANES, name=name)
    informer.add_handler(look)
    informer.start()
    try:
        async with asyncio.timeout(90):
            await found.wait()
    finally:
        await informer.aclose()


async def test_ready_control_plane_is_served_by_every_gateway(mover: Mover, lagging: LaggingGateway) -> None:
    client, name = mover.cluster.client, "globex"
    for start in ("OnDemand", "Always"):
        spec = {"deletionPolicy": "Destroy", "virtual": {"start": start}}
        await client.create(CONTROL_PLANES, {"metadata": {"name": f"{name}-{start.lower()}"}, "spec": spec})
        await _seen(client, f"{name}-{start.lower()}", lambda found: is_true(found.status.conditions, "Ready"))
        external = await external_config(client, f"{name}-{start.lower()}")
        assert await asyncio.gather(_code(lagging.config(external)), _code(external)) == [200, 200], start

    # The operator publishes a new address after every gateway serves it.
    await client.patch(CONTROL_PLANES, f"{name}-always", {"spec": {"endpointStyle": "HostName"}})
    host = f"{name}-always.localhost"
    await _seen(
        client, f"{name}-always", lambda found: any(host in (each.url or "") for each in found.status.endpoints)
    )
    by_host = await external_config(client, f"{name}-always")
    assert by_host.tls_server_name == host
    assert await asyncio.gather(_code(lagging.config(by_host)), _code(by_host)) == [200, 200]


async def test_lagging_gateway_holds_request_to_new_path(
    mover: Mover, lagging: LaggingGateway, eventually: Callable[..., Any]
) -> None:
    """Another gateway serves the path already. The lagging gateway must not refuse it as unknown."""
    # A read over a new connection takes twice this time.
    lagging.lag_seconds = 2.0
    client, name = mover.cluster.client, "initech"
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": {"deletionPolicy": "Destroy"}})

    async def is_served() -> bool:
        try:
            found = await client.get(SECRETS, gateway_secret_name(name), namespace=GATEWAY_NAMESPACE)
        except NotFound:
            return False
        newest = await read_newest_progress(client, namespace=GATEWAY_NAMESPACE)
        return newest.secrets >= int(found["metadata"]["resourceVersion"])

    await eventually(is_served, timeout=60)
    authorities = TenantAuthorities.from_secret(await secret(client, AUTHORITIES_SECRET, management_namespace(name)))
    pair = issue_client(authorities.client, user="admin", groups=("system:masters",))
    user = dataclasses.replace(
        mover.config,
        server=mover.config.server.replace(f"/{mover.name}/", f"/{name}/"),
        token=None,
        client_certificate=pair.certificate,
        client_key=pair.key,
    )
    # The request also waits until the API server has started.
    codes = (_code(config, timeout_seconds=120) for config in (lagging.config(user), user))
    assert await asyncio.gather(*codes) == [200, 200]


@dataclasses.dataclass
class _Reads:
    """A client that writes numbers through a gateway, and a client that reads them through the other gateway."""

    writer: Client
    reader: Client
    acknowledged: int = 0
    reads: int = 0
    cached_reads: int = 0
    """Number of lists at resourceVersion 0 that an API server answered."""
    writes: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    """Times of the acknowledgements, by the monotonic clock, and the numbers."""
    stale: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(loop()) for loop in (self._write, self._read)]
        try:
            yield
            assert not any(task.done() for task in tasks)
        finally:
            await end_tasks(tasks)

    async def _write(self) -> None:
        while True:
            number = self.acknowledged + 1
            await self.writer.apply(CONFIG_MAPS, _numbered(number), force=True)
            self.acknowledged = number
            self.writes.append((time.monotonic(), number))

    async def _read(self) -> None:
        while True:
            for read in (self._get, self._list_cached):
                try:
                    await read()
                except (ProviderError, TimeoutError) as error:
                    self.errors.append(str(error) or "no answer in time")
                    await asyncio.sleep(0.02)

    async def _get(self) -> None:
        minimum = self.acknowledged
        async with asyncio.timeout(5):
            config_map = await self.reader.get(CONFIG_MAPS, "number", namespace="default")
        self.reads += 1
        if (number := int(config_map["data"]["number"])) < minimum:
            self.stale.append(f"{number} after {minimum}")

    async def _list_cached(self) -> None:
        """List at resourceVersion 0, which a sealed API server can answer although etcd refuses its reads."""
        oldest = time.monotonic() - _CACHE_SECONDS
        minimum = next((number for acknowledged, number in reversed(self.writes) if acknowledged <= oldest), 0)
        async with asyncio.timeout(5):
            path = CONFIG_MAPS.path(namespace="default")
            config_maps = await self.reader.request("GET", path, params={"resourceVersion": "0"})
        self.cached_reads += 1
        data = {item["metadata"]["name"]: item.get("data") for item in config_maps["items"]}
        if (number := int(data["number"]["number"])) < minimum:
            self.stale.append(f"{number} in a cache {_CACHE_SECONDS:g} s after {minimum}")


def _numbered(number: int) -> dict[str, Any]:
    metadata = {"name": "number", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": str(number)}}


async def test_lagging_gateway_serves_no_stale_reads_after_moves(
    mover: Mover, lagging: LaggingGateway, eventually: Callable[..., Any]
) -> None:
    lagging.lag_seconds = 0.5
    assert lagging.process.running is not None
    async with (
        Client(mover.config, field_manager="kplane") as writer,
        Client(lagging.config(mover.config), field_manager="kplane") as reader,
    ):
        await writer.apply(CONFIG_MAPS, _numbered(0), force=True)
        reads = _Reads(writer, reader)
        async with reads.running():
            await mover.ask("Dedicated")
            await mover.arrives("Dedicated")
            await _more(reads, eventually)
            assert reads.stale == []
            # A busy machine may delay the gateway beyond the two seconds after which the operator seals a home.
            assert [error for error in reads.errors if "permission denied" not in error] == []
            reads.errors.clear()

            # The lagging controller is suspended after the change of home. Its Envoy still routes to the former home.
            await mover.ask("Virtual")
            await mover.until(lambda: mover.step == "Retaining")
            lagging.process.running.send_signal(signal.SIGSTOP)
            try:
                count = reads.acknowledged
                await eventually(lambda: reads.acknowledged, lambda found: found > count + 5, timeout=10)
                await eventually(lambda: reads.errors)
                await mover.arrives("Virtual")
            finally:
                lagging.process.running.send_signal(signal.SIGCONT)
            await _more(reads, eventually)
        assert reads.stale == []


async def _more(seen: _Reads, eventually: Callable[..., Any]) -> None:
    minimum = min(seen.reads, seen.cached_reads) + 5
    await eventually(lambda: min(seen.reads, seen.cached_reads), lambda found: found > minimum, timeout=30)
