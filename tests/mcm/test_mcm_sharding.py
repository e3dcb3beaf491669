"""Flags for sharding of a fleet, and the time for which instances may run under their Leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.start_permit import StartPermit
from kplane.mcm.instance.tenant_lease import Holder, TenantLease
from kplane.mcm.instance.turns import StartBudget, Turn
from kplane.mcm.placement.holder import lease_holder
from kplane.mcm.placement.lease_enforcer import LeaseEnforcer
from kplane.mcm.placement.sharding import Sharding, shard_metrics
from kplane.mcm.placement.stateful_set import is_restarted
from kplane.mcm.settings import Settings
from kplane.provider import Client, Cluster, ClusterConfig, NotFound
from kplane.provider.coordination.basic import Basic
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import ClusterNotOwned
from kplane.workloads import Component, ProcessRuntime, RestartPolicy

NAMESPACE = "--cluster-lease-namespace=kplane-system"


def parse(tmp_path: Path, *more: str) -> Sharding | None:
    return Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}", *more]).sharding


def test_sharding_is_off_by_default(tmp_path: Path) -> None:
    assert parse(tmp_path) is None
    assert shard_metrics(Basic()) == []


async def test_sharding_flags_reach_the_coordinator(tmp_path: Path) -> None:
    flags = ["--cluster-shard-id=one", "--cluster-lease-prefix=gold", "--cluster-lease-seconds=40"]
    sharding = parse(tmp_path, "--cluster-sharding", NAMESPACE, *flags)
    assert sharding == Sharding(namespace="kplane-system", identity="one", prefix="gold", lease_seconds=40)
    async with Client(ClusterConfig(server="https://127.0.0.1:1", token="t"), field_manager="kplane") as client:
        coordinator = sharding.coordinator(client)
        assert coordinator.identity == "one"
        assert coordinator.layout.lease_name("3") == "gold-shard-3"
        assert coordinator.timings.duration_seconds == 40
        assert {family.name for family in shard_metrics(coordinator)} == {
            "multicluster_fences",
            "multicluster_peers",
            "multicluster_lease_events",
        }


def test_lease_seconds_set_the_shard_timings() -> None:
    assert Sharding(namespace="a", lease_seconds=20).timings == ShardTimings()
    for seconds in (10, 11, 300):
        assert Sharding(namespace="a", lease_seconds=seconds).timings.duration_seconds == seconds


def test_default_lease_outlasts_a_minute_without_management_api(tmp_path: Path) -> None:
    """The outage begins just before a renewal, and a call hangs when the outage ends."""
    sharding = parse(tmp_path, "--cluster-sharding", NAMESPACE)
    assert sharding is not None
    timings = sharding.timings
    # test_provider_sharded_outages covers peers with these times.
    assert timings == ShardTimings(duration_seconds=90, peer_seconds=90)
    last_try = timings.renew_seconds + 60.0 + timings.call_seconds + 2 * timings.retry_seconds
    assert last_try + timings.call_seconds < timings.duration_seconds - timings.drain_seconds


@pytest.mark.parametrize(
    ("replicas", "first", "pod", "restarted"),
    [
        (3, None, "kplane-mcm-2", True),
        (2, None, "kplane-mcm-2", False),
        (0, None, "kplane-mcm-0", False),
        (None, None, "kplane-mcm-0", True),
        (2, 5, "kplane-mcm-6", True),
        (2, 5, "kplane-mcm-1", False),
        (3, None, "other-mcm-2", False),
        (3, None, "kplane-mcm", False),
        (3, None, "kplane-mcm-\N{SUPERSCRIPT TWO}", False),
        (3, None, "-2", False),
    ],
)
async def test_pod_is_restarted_if_its_statefulset_has_its_ordinal(
    replicas: int | None, first: int | None, pod: str, restarted: bool
) -> None:
    spec: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
    stateful_set: dict[str, Any] = {
        "metadata": {},
        "spec": spec | ({} if first is None else {"ordinals": {"start": first}}),
    }

    class Management:
        async def get(self, resource: Any, name: str, *, namespace: str) -> Any:
            if (resource.plural, name, namespace) != ("statefulsets", "kplane-mcm", "kplane-system"):
                raise NotFound(404, "NotFound", "there is none")
            return stateful_set

    client = cast("Client", Management())
    assert await is_restarted(client, namespace="kplane-system", pod=pod) is restarted
    stateful_set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not await is_restarted(client, namespace="kplane-system", pod=pod)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([NAMESPACE], "give --cluster-sharding too, or leave them out"),
        (["--cluster-shard-id=a"], "give --cluster-sharding too"),
        (["--cluster-lease-seconds=20"], "give --cluster-sharding too"),
        (["--cluster-sharding"], "--cluster-sharding needs --cluster-lease-namespace"),
        (["--cluster-sharding", NAMESPACE, "--cluster-shard-id=A b"], "becomes part of the name of a Lease"),
        (["--cluster-sharding", NAMESPACE, "--cluster-lease-prefix=A"], "has to be a DNS-1123 label"),
        (
            ["--cluster-sharding", NAMESPACE, "--cluster-lease-seconds=9"],
            "9: at least 10 is needed",
        ),
        (
            ["--cluster-sharding", NAMESPACE, "--cluster-lease-seconds=soon"],
            "soon: Input should be a valid integer",
        ),
        (
            ["--cluster-sharding", NAMESPACE, "--registration=a", "--report-status"],
            "names what this mcm alone serves: leave out --cluster-sharding",
        ),
    ],
)
def test_conflicting_sharding_flags_are_refused_with_the_reason(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, *flags)
    assert says in " ".join(capsys.readouterr().err.split())


@dataclass
class FakeLease:
    """A Lease in a control plane, with its remaining time."""

    seconds_left: float = 60.0


@dataclass
class Fake:
    """A fake instance: its component, its Lease and its permit."""

    component: str
    lease: FakeLease
    permit: StartPermit


def cluster(name: str) -> Cluster:
    return Cluster(name, config=ClusterConfig(server="https://127.0.0.1:1", token="t"))


def fake(name: str, *, owned_seconds: Callable[[str], float | None] | None = None, leased: bool = False) -> Fake:
    lease = FakeLease()
    permit = StartPermit(
        cluster(name),
        owned_seconds=owned_seconds,
        lease=cast("TenantLease", lease) if leased else None,
        turn=Turn(StartBudget()),
        watchdog=None,
        announcement=AsyncMock(),
        timeout_seconds=5.0,
        grace_seconds=90.0,
    )
    return Fake(name, lease, permit)


def instances_of(fakes: list[Fake]) -> Callable[[], list[Instance]]:
    return lambda: cast("list[Instance]", fakes)


async def test_instance_without_shard_or_instance_lease_is_killed(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Other instances stay. An instance is killed before its shard Lease or the Lease in its control plane expires."""
    ends_at = {"ours": time.monotonic() + 60.0, "ending": time.monotonic() + 60.0}

    def seconds_left(name: str) -> float | None:
        if name not in ends_at:
            raise ClusterNotOwned(name)
        return ends_at[name] - time.monotonic()

    names = ("ours", "ending", "lost", "leaseless", "unbounded")
    enforcer = LeaseEnforcer(tmp_path)
    leaseless, ends_at["leaseless"] = (
        fake("leaseless", owned_seconds=seconds_left, leased=True),
        time.monotonic() + 60.0,
    )
    instances = [fake(name, owned_seconds=seconds_left) for name in ("ours", "ending")]
    instances += [leaseless, fake("unbounded")]
    async with (
        ProcessRuntime(tmp_path, programs=[Path("/bin")]) as runtime,
        enforcer.running(instances_of(instances), stop=asyncio.Event()),
    ):
        for name in names:
            component = Component(name=name, program="sleep", args=("1000",), restart=RestartPolicy.NEVER)
            await runtime.apply(component)
        pids = {name: runtime.state(name).pid for name in names}

        def running() -> set[str]:
            return {name for name in names if runtime.state(name).pid == pids[name]}

        await enforcer.acquire()
        assert running() == set(names)
        instances.append(fake("lost", owned_seconds=seconds_left))
        ends_at["ending"] = time.monotonic() + 0.6  # the instance is killed half a second earlier
        leaseless.lease.seconds_left = 0.0  # of the Lease in its control plane
        await enforcer.acquire()
        await eventually(running, lambda found: found == {"ours", "unbounded"})
        for name in names:
            await runtime.delete(name)


async def test_unsharded_instance_is_killed_when_its_lease_runs_out(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    enforcer = LeaseEnforcer(tmp_path)
    instances = [fake(name, leased=True) for name in ("ours", "lost")]
    instances[1].lease.seconds_left = 0.0
    async with (
        ProcessRuntime(tmp_path, programs=[Path("/bin")]) as runtime,
        enforcer.running(instances_of(instances), stop=asyncio.Event()),
    ):
        for name in ("ours", "lost"):
            await runtime.apply(Component(name=name, program="sleep", args=("1000",), restart=RestartPolicy.NEVER))
        await enforcer.acquire()
        await eventually(lambda: runtime.state("lost").pid is None)
        assert runtime.state("ours").pid is not None
        for name in ("ours", "lost"):
            await runtime.delete(name)


def holder_of(directory: Path, *, prefix: str | None = None) -> Holder:
    directory.mkdir(exist_ok=True)
    sharding = Sharding(namespace="kplane-system", identity=directory.name, prefix=prefix) if prefix else None
    return lease_holder(directory, sharding=sharding, uid=str)


def test_mcm_follows_earlier_mcm_of_its_fleet_or_its_directory(tmp_path: Path) -> None:
    def follows(one: Holder, other: Holder) -> bool:
        mark = one.mark(cluster("a"))
        return mark is not None and mark in other.identity(cluster("a"))

    directory, other_directory = tmp_path / "one", tmp_path / "two"
    sharded_holder = holder_of(directory, prefix="mcm")
    assert sharded_holder.name == "one"
    assert follows(sharded_holder, holder_of(other_directory, prefix="mcm"))
    # Two fleets serve the same registration by mistake.
    assert not follows(sharded_holder, holder_of(other_directory, prefix="gold"))
    # Without sharding, as each dedicated mcm, mcm follows only itself. A force-deleted pod may work on.
    assert follows(holder_of(directory), holder_of(directory))
    assert not follows(holder_of(directory), holder_of(other_directory))
    assert not follows(sharded_holder, holder_of(directory))
    assert not follows(holder_of(directory), sharded_holder)
    (directory / ".fleet").write_bytes(b"")
    assert follows(holder_of(directory), holder_of(directory))
