"""Exit reasons of instances, from the real output of kube-controller-manager and from signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from kplane.binaries.programs import Binaries
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.exits import OomKills, exit_reason, find_counter
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.metrics import Metrics
from kplane.mcm.serving.overview import Overview
from kplane.mcm.status.observer import NullReporter
from kplane.provider import Client, Cluster, ClusterConfig
from kplane.provider.client.resources import LEASES
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Pace, ProcessRuntime

Eventually = Callable[..., Any]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Error: unknown flag: --nope' >&2; exit 1", Reason.BAD_FLAG),
        ("echo 'err=failed to wait for apiserver being healthy: timed out' >&2; exit 1", Reason.API_SERVER_NOT_HEALTHY),
        ("echo 'E1 leaderelection.go:1] leaderelection lost' >&2; exit 1", Reason.LEASE_LOST),
        ("echo 'fatal error: runtime: out of memory' >&2; exit 2", Reason.OUT_OF_MEMORY),
        ("kill -SEGV $$", Reason.KILLED),
        ("exit 3", Reason.BACKOFF),
    ],
)
async def test_exit_reason_is_reported_and_counted_in_metrics(
    runtime: ProcessRuntime, tmp_path: Path, eventually: Eventually, script: str, reason: Reason
) -> None:
    program = tmp_path / "kube-controller-manager"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    observer = create_autospec(NullReporter, instance=True)
    instances = Instances(runtime, observer=observer)
    clusters = Clusters(awares=[instances])
    overview = Overview(clusters, instances=instances)
    try:
        await clusters.add_or_replace(Cluster("a", config=ClusterConfig(server="https://127.0.0.1:1", token="t")))
        [summary] = await eventually(overview.summaries, lambda found: found and found[0].exits.get(reason, 0) > 2)
        assert set(summary.exits) == {reason}
        assert {call.args[1] for call in observer.update.call_args_list} == {Reason.STARTING, reason}
        metrics = (await Metrics(overview).render()).decode()
        assert f'mcm_instance_exits_total{{cluster="a",reason="{reason}"}}' in metrics
    finally:
        await clusters.aclose()


async def test_each_exit_counts_once_and_a_failed_start_does_not_count(tmp_path: Path, eventually: Eventually) -> None:
    program = tmp_path / "kube-controller-manager"
    program.write_text("#!/bin/sh\necho >> data/runs\n[ $(wc -l < data/runs) -lt 7 ] || exec sleep 1000\nexit 3\n")
    program.chmod(0o700)
    pace = Pace(restart_base=0.02, restart_limit=0.02)
    async with ProcessRuntime(tmp_path / "state", programs=[tmp_path], pace=pace) as runtime:
        instances = Instances(runtime, observer=NullReporter(registration=None))
        clusters = Clusters(awares=[instances])
        try:
            await clusters.add_or_replace(Cluster("a", config=ClusterConfig(server="https://127.0.0.1:1", token="t")))
            [instance] = await eventually(lambda: instances.groups.get("a"))
            home = runtime.log_path(instance.component).parent
            await eventually(lambda: len((home / "data/runs").read_text()) == 7)
            pid = await eventually(lambda: instance.process.pid)
            # The last run ends while the directory that the next start needs is away.
            home.rename(tmp_path / "away")
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: "cannot be started" in instance.message)
            assert instance.exits == {Reason.BACKOFF: 6, Reason.KILLED: 1}
            (tmp_path / "away").rename(home)
        finally:
            await clusters.aclose()


def test_oom_kill_is_distinguished_from_other_kills(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 4\noom_kill 3\n")
    kills = OomKills(events)
    assert exit_reason(-signal.SIGKILL, "", oom_killed=kills.take()) is Reason.KILLED
    events.write_text("low 0\noom 5\noom_kill 4\n")
    assert exit_reason(-signal.SIGKILL, "", oom_killed=kills.take()) is Reason.OUT_OF_MEMORY
    assert exit_reason(-signal.SIGKILL, "", oom_killed=kills.take()) is Reason.KILLED
    assert not OomKills(tmp_path / "none").take()


def test_each_oom_kill_explains_one_exit(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 3\n")
    kills = OomKills(events)
    events.write_text("oom_kill 5\n")
    assert [kills.take() for _ in range(3)] == [True, True, False]


def test_oom_counter_is_found_for_cgroups_v1_and_v2(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    for lines, file in (
        ("0::/a.slice/b.scope\n", "a.slice/b.scope/memory.events"),
        ("0::/\n", "memory.events"),
        ("4:memory:/docker/x\n1:cpu:/\n0::/\n", "memory/docker/x/memory.oom_control"),
        ("4:memory:/kubepods/x\n0::/kubepods/x\n", "memory/memory.oom_control"),
    ):
        root = tmp_path / file.replace("/", "-")
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("oom_kill 0\n")
        membership.write_text(lines)
        assert find_counter(root, membership=membership) == root / file
    membership.write_text("0::/gone\n")
    assert find_counter(tmp_path / "none", membership=membership) is None


@pytest.mark.integration
@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--nope", Reason.BAD_FLAG),
        ("--concurrent-gc-syncs=x", Reason.BAD_FLAG),
        ("--controllers=nope", Reason.BAD_FLAG),
        ("--feature-gates=Nope=true", Reason.BAD_FLAG),
        # kube-controller-manager waits 10 s for an API server, and has no flag for this time.
        pytest.param("--v=1", Reason.API_SERVER_NOT_HEALTHY, marks=pytest.mark.slow),
    ],
)
async def test_exit_reason_is_read_from_real_output(
    binaries: Binaries, tmp_path: Path, kubeconfig: str, argument: str, reason: Reason
) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    async with running(binaries, tmp_path, "--leader-elect=false", argument) as process:
        assert await told_reason(process) is reason


@pytest.mark.integration
async def test_lost_lease_is_read_from_real_output(
    binaries: Binaries, api_server: Any, tmp_path: Path, eventually: Eventually
) -> None:
    """Instances of mcm run without leader election, so this test enables it."""
    lease = f"lost-{uuid.uuid4().hex[:8]}"
    (tmp_path / "kubeconfig").write_bytes(api_server.admin_kubeconfig.read_bytes())
    election_flags = (
        "--leader-elect=true",
        "--leader-elect-resource-namespace=default",
        f"--leader-elect-resource-name={lease}",
        "--leader-elect-lease-duration=4s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=500ms",
    )
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        running(binaries, tmp_path, "--controllers=ttl-controller", *election_flags) as process,
    ):
        await eventually(lambda: client.get(LEASES, lease, namespace="default"))
        foreign_lease = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 600}}
        await client.patch(LEASES, lease, foreign_lease, namespace="default")
        assert await told_reason(process) is Reason.LEASE_LOST
        await client.delete(LEASES, lease, namespace="default")


@contextlib.asynccontextmanager
async def running(binaries: Binaries, directory: Path, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the real program with the file `kubeconfig` of the directory."""
    process = await asyncio.create_subprocess_exec(
        str(binaries.path("kube-controller-manager")),
        *(f"--kubeconfig={directory}/kubeconfig", f"--authentication-kubeconfig={directory}/kubeconfig"),
        *("--secure-port=0", f"--cert-dir={directory}", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def told_reason(process: asyncio.subprocess.Process) -> Reason:
    """Wait until the process ends, and return its exit reason."""
    async with asyncio.timeout(90.0):
        output, _ = await process.communicate()
    return exit_reason(process.returncode, output.decode()[-2048:], oom_killed=False)
