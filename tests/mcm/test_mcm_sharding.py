"""How mcm is told to share a fleet, and for how long its instances may run then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.placement.lease_enforcer import LeaseEnforcer
from kplane.mcm.placement.sharding import Sharding, shard_metrics
from kplane.mcm.settings import Settings
from kplane.provider import Client, Cluster, ClusterConfig
from kplane.provider.coordination.basic import Basic
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import ClusterNotOwned
from kplane.workloads import Component, ProcessRuntime, RestartPolicy

NAMESPACE = "--cluster-lease-namespace=kplane-system"


def parse(tmp_path: Path, *more: str) -> Sharding | None:
    return Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}", *more]).sharding


def test_an_mcm_that_is_told_nothing_is_alone(tmp_path: Path) -> None:
    assert parse(tmp_path) is None
    assert shard_metrics(Basic()) == []


async def test_what_is_given_reaches_the_leases(tmp_path: Path) -> None:
    flags = ["--cluster-shard-id=one", "--cluster-lease-prefix=gold", "--cluster-lease-seconds=40"]
    sharding = parse(tmp_path, "--cluster-sharding", NAMESPACE, *flags)
    assert sharding == Sharding(namespace="kplane-system", identity="one", prefix="gold", lease_seconds=40)
    async with Client(ClusterConfig(server="https://127.0.0.1:1", token="t")) as client:
        coordinator = sharding.coordinator(client)
        assert coordinator.identity == "one"
        assert coordinator.layout.lease_name("3") == "gold-shard-3"
        assert coordinator.timings.duration_seconds == 40
        assert {family.name for family in shard_metrics(coordinator)} == {
            "multicluster_fences",
            "multicluster_peers",
            "multicluster_lease_events",
        }


def test_times_are_the_usual_ones_and_fit_whatever_is_asked_for() -> None:
    assert Sharding(namespace="a").timings == ShardTimings()
    for seconds in (10, 11, 300):
        assert Sharding(namespace="a", lease_seconds=seconds).timings.duration_seconds == seconds


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
def test_what_does_not_go_together_is_refused(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, *flags)
    assert says in " ".join(capsys.readouterr().err.split())


@dataclass
class Fake:
    """An instance as far as it matters here: the component that it is, and its cluster."""

    component: str
    cluster: Cluster


def fakes(*names: str) -> list[Instance]:
    config = ClusterConfig(server="https://127.0.0.1:1", token="t")
    return cast("list[Instance]", [Fake(name, Cluster(name, config=config)) for name in names])


async def test_instances_of_clusters_that_are_not_ours_are_killed_whoever_forgot_them(
    tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """And no others; a cluster whose time is running out loses its instance before that."""
    ends_at = {"ours": time.monotonic() + 60.0, "ending": time.monotonic() + 60.0}

    def seconds_left(name: str) -> float | None:
        if name not in ends_at:
            raise ClusterNotOwned(name)
        return ends_at[name] - time.monotonic()

    names = ("ours", "ending", "lost", "unbounded")
    enforcer = LeaseEnforcer(tmp_path, seconds_left=lambda name: None if name == "unbounded" else seconds_left(name))
    present = fakes("ours", "ending", "unbounded")
    async with (
        ProcessRuntime(tmp_path, programs=[Path("/bin")]) as runtime,
        enforcer.running(lambda: present, stop=asyncio.Event()),
    ):
        for name in names:
            component = Component(name=name, program="sleep", args=("1000",), restart=RestartPolicy.NEVER)
            await runtime.apply(component)
        pids = {name: runtime.state(name).pid for name in names}

        def running() -> set[str]:
            return {name for name in names if runtime.state(name).pid == pids[name]}

        await enforcer.admit()
        assert running() == set(names)
        present += fakes("lost")
        ends_at["ending"] = time.monotonic() + 0.6  # it is ended half a second before that
        await enforcer.admit()
        await eventually(running, lambda found: found == {"ours", "unbounded"})
        for name in names:
            await runtime.delete(name)
