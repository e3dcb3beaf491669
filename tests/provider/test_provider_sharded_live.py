"""The Leases of peers and fences on the real API server, with an identity that has no more than the rights it needs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kplane.provider import Client, Cluster, ClusterConfig, Manager
from kplane.provider.client.resources import LEASES
from kplane.provider.cluster.context import cluster_context
from kplane.provider.coordination.fence import Counts, Fence
from kplane.provider.coordination.lease import Lease, LeaseTimings, clock
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import ClusterNotOwned

pytestmark = pytest.mark.integration

TIMINGS = ShardTimings(
    # No Lease expires during a test, even on a slow machine.
    duration_seconds=60,
    renew_seconds=0.5,
    retry_seconds=0.2,
    drain_seconds=1.5,
    peer_seconds=60,
    peer_renew_seconds=0.5,
    probe_seconds=0.2,
)
SHARDS = 4
FENCES = [f"mcr-shard-{number}" for number in range(SHARDS)]
RULE = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
}
CLUSTERS = ["zoo", "jungle", "island"]
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
async def limited(service_account: Callable[..., Awaitable[ClusterConfig]]) -> AsyncIterator[Client]:
    async with Client(await service_account([RULE])) as client:
        yield client


class Fleet:
    """A provider of clusters without connections."""

    name = "fleet"

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.fleet: Any = None

    async def run(self, fleet: Any) -> None:
        self.fleet = fleet
        for name in self.names:
            await fleet.add_or_replace(Cluster(name, config=ClusterConfig("https://127.0.0.1:1")))
        await asyncio.Event().wait()


class Working:
    """An aware whose work ends when `go` is set."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.begun: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def engage(self, engagement: Any) -> None:
        name = engagement.cluster.name
        self.live.add(name)
        self.begun.append(name)
        engagement.on_close(lambda: self.end(name))

    async def end(self, name: str) -> None:
        await self.go.wait()
        self.live.discard(name)


class Replica:
    """A manager with a coordinator that divides the clusters among replicas."""

    def __init__(self, client: Client, namespace: str, identity: str, **options: Any) -> None:
        self.working, self.provider = Working(), Fleet(CLUSTERS)
        self.options = {"timings": TIMINGS, "on_overrun": None, "shards": SHARDS} | options
        self.coordinator = Sharded(client, namespace=namespace, identity=identity, **self.options)
        self.manager = Manager(None, self.provider, awares=[self.working], coordinator=self.coordinator, name="test")


@pytest.fixture
async def replica(limited: Client, namespace: str) -> AsyncIterator[Callable[..., Awaitable[Replica]]]:
    """`await replica(identity, **options)`: a replica that runs until the test ends, or until its `stop` is set."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(identity: str, **options: Any) -> Replica:
            replica = Replica(limited, namespace, identity, **options)
            await stack.enter_async_context(replica.manager)
            return replica

        yield start


@pytest.fixture
def spec(client: Client, namespace: str) -> Callable[[str], Awaitable[dict[str, Any]]]:
    async def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await client.get(LEASES, name, namespace=namespace))["spec"]
        return found

    return read


async def test_peer_announces_itself_and_releases_its_leases(
    client: Client, namespace: str, limited: Client, spec: Any, free_leases: Any, eventually: Eventually
) -> None:
    """Criterion 58: labels, weight, a renewTime that advances, and no Lease of the peer afterwards."""
    await free_leases(*FENCES)
    replica = Replica(limited, namespace, "Node_7", weight=3)
    # A dead peer, a peer of another fleet, and a Lease without a holder as upstream leaves it.
    for name, prefix, holder, renewed in (
        ("mcr-peer-dead", "mcr-peer", "dead", "2020-01-01T00:00:00.000000Z"),
        ("other-peer-x", "other-peer", "x", "2099-01-01T00:00:00.000000Z"),
        ("mcr-peer-nobody", "mcr-peer", "", "2099-01-01T00:00:00.000000Z"),
    ):
        labels = {
            "app.kubernetes.io/part-of": "multicluster-runtime",
            "mcr.sigs.k8s.io/peer": "true",
            "mcr.sigs.k8s.io/prefix": prefix,
        }
        notes = {"mcr.sigs.k8s.io/fences": "mcr-shard/4"}
        metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": notes}
        said = {"holderIdentity": holder, "leaseDurationSeconds": 30, "renewTime": renewed}
        await client.create(LEASES, {"metadata": metadata, "spec": said})
    async with replica.manager:
        found = await eventually(lambda: client.get(LEASES, "mcr-peer-node-7", namespace=namespace))
        assert found["metadata"]["labels"] == {
            "app.kubernetes.io/part-of": "multicluster-runtime",
            "mcr.sigs.k8s.io/peer": "true",
            "mcr.sigs.k8s.io/prefix": "mcr-peer",
        }
        assert found["metadata"]["annotations"]["mcr.sigs.k8s.io/weight"] == "3"
        assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == ("node-7", 60)
        first = found["spec"]["renewTime"]
        await eventually(lambda: spec("mcr-peer-node-7"), lambda said: said["renewTime"] > first)
        await eventually(lambda: replica.coordinator.stats.owned == SHARDS)
        assert replica.coordinator.stats.peers == ("node-7",)
        assert [(await spec(name))["holderIdentity"] for name in FENCES] == ["node-7"] * SHARDS
    left = {
        found["metadata"]["name"]: found["spec"] for found in (await client.list(LEASES, namespace=namespace)).items
    }
    assert "mcr-peer-node-7" not in left
    # The next peer need not wait until the Leases expire.
    assert not any(left[name].get("holderIdentity") for name in FENCES)


async def test_fence_is_acquired_and_released(namespace: str, limited: Client, spec: Any, stepped_clock: Any) -> None:
    """Criteria 54, 57: the Lease has holder and duration; a second acquire is no error; a release frees it."""
    options = {"namespace": namespace, "identity": "it", "timings": LeaseTimings(), "now": stepped_clock}
    lease = Lease(limited, name="mcr-shard-zoo", strict=True, **options)
    await lease.release()
    assert not await lease.try_acquire()  # the Lease may have been deleted while its holder was at work
    stepped_clock.skip(9.0)
    assert not await lease.try_acquire()
    stepped_clock.skip(1.0)
    assert await lease.try_acquire()
    assert await lease.try_acquire()
    said = await spec("mcr-shard-zoo")
    assert (said["holderIdentity"], said["leaseDurationSeconds"]) == ("it", 10)
    await lease.release()
    assert not (await spec("mcr-shard-zoo")).get("holderIdentity")
    await lease.release()
    vacant = Lease(limited, name="mcr-shard-new", **options)
    assert await vacant.try_acquire(absent_since=stepped_clock() - 10)


async def test_fence_of_another_peer_is_respected_until_expiry(
    client: Client, namespace: str, limited: Client, stepped_clock: Any
) -> None:
    """Criterion 55: the expiry counts by the local clock, from the observed renewal."""
    said = {"holderIdentity": "other", "leaseDurationSeconds": 20, "renewTime": "2020-01-01T00:00:00.000000Z"}
    metadata = {"name": "mcr-shard-1", "namespace": namespace}
    await client.create(LEASES, {"metadata": metadata, "spec": said})
    lease = Lease(limited, namespace=namespace, name="mcr-shard-1", identity="it", now=stepped_clock)
    assert not await lease.try_acquire()
    stepped_clock.skip(19.0)
    assert not await lease.try_acquire()
    await client.patch(
        LEASES, "mcr-shard-1", {"spec": {"renewTime": "2020-01-01T00:00:09.000000Z"}}, namespace=namespace
    )
    assert not await lease.try_acquire()
    stepped_clock.skip(19.0)
    assert not await lease.try_acquire()
    stepped_clock.skip(1.0)
    assert await lease.try_acquire()


async def test_fence_with_an_edited_holder_is_lost_once(
    client: Client, namespace: str, limited: Client, spec: Any, eventually: Eventually
) -> None:
    """Criterion 56: work ends once, and the holder that another process wrote stays."""
    ended: list[bool] = []
    begun = asyncio.Event()
    counts = Counts()

    async def end() -> None:
        ended.append(fence.may_begin)

    lease = Lease(limited, namespace=namespace, name="mcr-shard-2", identity="it", timings=None)
    fence = Fence(
        lease,
        timings=TIMINGS,
        counts=counts,
        slots=asyncio.Semaphore(1),
        begin=begun.set,
        end=end,
        absent_since=lambda: clock() - 100,
        now=clock,
    )
    fence.want(True)
    running = asyncio.create_task(fence.run())
    await asyncio.wait_for(begun.wait(), 60)
    await client.patch(LEASES, "mcr-shard-2", {"spec": {"holderIdentity": "thief"}}, namespace=namespace)
    await eventually(lambda: ended == [False])
    assert fence.seconds_left == 0
    fence.want(False)
    await running
    assert (ended, counts.lost, counts.released) == ([False], 1, 0)
    assert (await spec("mcr-shard-2"))["holderIdentity"] == "thief"


async def test_clusters_are_divided_again_when_peers_join_and_leave(
    namespace: str, limited: Client, replica: Any, spec: Any, free_leases: Any, eventually: Eventually
) -> None:
    """Criteria 59, 60, 75: the peer at work holds the fence; its work drains before the next peer acquires it."""
    await free_leases(*(f"mcr-shard-{name}" for name in CLUSTERS))
    first = await replica("first", fence="cluster")
    await eventually(lambda: first.working.live == set(CLUSTERS))
    for name in CLUSTERS:
        said = await spec(f"mcr-shard-{name}")
        assert (said["holderIdentity"], said["leaseDurationSeconds"]) == ("first", 60)
        assert first.manager.get_cluster(name).name == name
        assert 0 < first.coordinator.require_write(name) <= TIMINGS.duration_seconds - TIMINGS.margin_seconds

    first.working.go.clear()
    second = Replica(limited, namespace, "second", fence="cluster")
    async with second.manager:
        await eventually(lambda: first.coordinator.stats.draining)
        (moving,) = [name for name in CLUSTERS if not first.coordinator.may_work(name)]
        # The fence is renewed while its work drains.
        for _ in range(2):
            drained = (await spec(f"mcr-shard-{moving}"))["renewTime"]
            await eventually(
                lambda: spec(f"mcr-shard-{moving}"), lambda said, before=drained: said["renewTime"] > before
            )
        assert second.working.begun == []
        assert first.coordinator.require_write(moving) is not None
        first.working.go.set()
        await eventually(lambda: second.working.live == {moving})
        assert (await spec(f"mcr-shard-{moving}"))["holderIdentity"] == "second"

        def refusal() -> str:
            with pytest.raises(ClusterNotOwned) as refused:
                first.manager.get_cluster(moving)
            return str(refused.value)

        # The holder is known after the watch event.
        await eventually(refusal, lambda text: text.endswith(f"mcr-shard-{moving} is held by second"))
        assert refusal().startswith(f"cluster '{moving}' ")
        with pytest.raises(ClusterNotOwned):
            first.coordinator.require_write(moving)
        # Each peer writes to the local cluster, for its own clusters.
        assert first.coordinator.require_write("") is None
        with cluster_context(moving), pytest.raises(ClusterNotOwned):
            first.coordinator.require_write("")
    assert second.working.live == set()
    await eventually(lambda: first.working.live == set(CLUSTERS))
    assert first.working.begun.count(moving) == 2


async def test_removed_cluster_leaves_others_engaged(replica: Any, free_leases: Any, eventually: Eventually) -> None:
    """Criterion 64: the removed cluster is engaged again when it comes back (D3)."""
    await free_leases(*FENCES)
    first = await replica("first")
    await eventually(lambda: first.working.live == set(CLUSTERS))
    await first.provider.fleet.remove("zoo")
    assert first.working.live == {"jungle", "island"}
    await first.provider.fleet.add_or_replace(Cluster("zoo", config=ClusterConfig("https://127.0.0.1:1")))
    await eventually(lambda: first.working.live == set(CLUSTERS))
    assert sorted(first.working.begun) == sorted([*CLUSTERS, "zoo"])


async def test_process_with_endless_work_is_ended(
    limited: Client, namespace: str, free_leases: Any, running_clock: Any, eventually: Eventually
) -> None:
    """Criterion 75: the process ends before another peer can acquire the fence, which is not released."""
    await free_leases(*FENCES)
    held: list[bool] = []
    ended = threading.Event()

    def end() -> None:
        held.append(any(fence.lease.held for fence in replica.coordinator._fences.all()))
        ended.set()

    replica = Replica(limited, namespace, "first", on_overrun=end, now=running_clock)
    async with replica.manager:
        await eventually(lambda: replica.working.live == set(CLUSTERS))
        assert not ended.is_set()
        due_at = replica.coordinator._fences.overrun_at()
        assert running_clock() < due_at < min(fence.lease.expires_at for fence in replica.coordinator._fences.all())
        running_clock.stop(at=due_at)
        ended.wait(60.0)  # blocks the event loop
        assert held == [True]


async def test_server_times_out_a_write_when_its_fence_expires(client: Client, namespace: str) -> None:
    """The API server accepts the timeout parameter of the write."""
    async with Client(client.config, before_write=lambda: 20.0) as capped:
        await capped.create(LEASES, {"metadata": {"name": "a", "namespace": namespace}})
        assert await capped.delete(LEASES, "a", namespace=namespace)
