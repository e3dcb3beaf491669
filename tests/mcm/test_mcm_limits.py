"""Limits of memory, open files and log size for an instance on a shared machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from kplane.binaries.programs import Binaries
from kplane.mcm.describe.controllers import OPEN_FILES
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.memory import MemoryCeiling
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.overview import Overview
from kplane.mcm.settings import Settings
from kplane.mcm.status.observer import NullReporter
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Component, Lifetime, Pace, Phase, ProcessRuntime, RestartPolicy

from .instances_world import PYTHON

Eventually = Callable[..., Any]
HUNGRY = "import time; taken = b'x' * (200 << 20); time.sleep(1000)"


def cluster(name: str) -> Cluster:
    return Cluster(name, config=ClusterConfig(server=f"https://{name}.test", token="t"))


@contextlib.asynccontextmanager
async def modest_and_hungry(instances: Instances) -> AsyncIterator[Callable[[str], Any]]:
    """Run two instances, of which `hungry` takes 200 MiB. Yields a function from cluster name to summary."""
    clusters = Clusters(awares=[instances])
    overview = Overview(clusters, instances=instances)
    try:
        await clusters.add_or_replace(cluster("modest"))
        await clusters.add_or_replace(cluster("hungry"))
        yield lambda name: next(summary for summary in overview.summaries() if summary.name == name)
    finally:
        await clusters.aclose()


@pytest.fixture
def program(tmp_path: Path) -> None:
    path = tmp_path / "kube-controller-manager"
    path.write_text(
        f'#!/bin/sh\ngrep -q hungry.test files/kubeconfig && exec {sys.executable} -c "{HUNGRY}"\nexec sleep 1000\n'
    )
    path.chmod(0o700)


@pytest.mark.usefixtures("program")
async def test_only_the_instance_above_its_memory_limit_is_ended(
    runtime: ProcessRuntime, eventually: Eventually
) -> None:
    observer = create_autospec(NullReporter, instance=True)
    instances = Instances(runtime, observer=observer, flags=PYTHON)
    async with modest_and_hungry(instances) as summary:
        pid = await eventually(lambda: summary("modest").pid)
        async with MemoryCeiling(instances.all, limit_bytes=100 << 20, interval_seconds=0.1).kept():
            await eventually(lambda: summary("hungry").exits.get("OutOfMemory", 0) >= 2)
        assert set(summary("hungry").exits) == {"OutOfMemory"}
        updates = [call for call in observer.update.call_args_list if call.args[0] == "hungry"]
        assert updates[-1].args[1] is Reason.OUT_OF_MEMORY
        assert "MiB of memory, and may take 100 MiB" in updates[-1].kwargs["message"]
        assert (summary("modest").pid, summary("modest").restarts) == (pid, 0)


@pytest.mark.usefixtures("program")
async def test_later_kill_is_not_reported_as_out_of_memory(runtime: ProcessRuntime, eventually: Eventually) -> None:
    instances = Instances(runtime, observer=NullReporter(registration=None), flags=PYTHON)
    async with modest_and_hungry(instances) as summary:
        pid = await eventually(lambda: summary("modest").pid)
        [instance] = instances.groups["modest"]
        instance.end_above(pid, taken_bytes=2 << 20, limit_bytes=1 << 20)
        # The instance is held for another reason before the runtime reports the exit.
        await instance.hold(BlockingReason(Reason.API_SERVER_UNREACHABLE, "it is away"))
        await instance.start(Mock(cluster=instance.cluster))
        os.kill(await eventually(lambda: summary("modest").pid), signal.SIGKILL)
        assert await eventually(lambda: summary("modest").exits) == {"Killed": 1}


async def test_pss_is_read_again_only_when_resident_memory_grows(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The kernel computes PSS slowly, so mcm does not read it again for a large process that does not grow."""
    reads: list[int] = []
    monkeypatch.setattr("kplane.mcm.instance.memory.pss_of", lambda pid: reads.append(pid) or 0)
    list_instances = Mock(return_value=[create_autospec(Instance, instance=True, process=Mock(pid=os.getpid()))])
    async with MemoryCeiling(list_instances, limit_bytes=16 << 20, interval_seconds=0.01).kept():
        await eventually(lambda: list_instances.call_count > 20)
        before = len(reads)
        # The process may still release memory of an earlier test, but it does not grow all the time.
        assert before <= 3
        memory = bytearray(os.urandom(1)) * (64 << 20)
        await eventually(lambda: len(reads) > before, timeout=3.0)
    assert len(memory) == 64 << 20


async def test_instance_process_has_the_limit_of_open_files(
    runtime: ProcessRuntime, tmp_path: Path, eventually: Eventually
) -> None:
    program = tmp_path / "kube-controller-manager"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    instances = Instances(runtime, observer=NullReporter(registration=None))
    clusters = Clusters(awares=[instances])
    try:
        await clusters.add_or_replace(cluster("a"))
        pid = await eventually(lambda: instances.groups["a"][0].process.pid)
        limits = Path(f"/proc/{pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == [str(OPEN_FILES), str(OPEN_FILES)]
    finally:
        await clusters.aclose()


@pytest.mark.parametrize("text", ["1", "63", "-1", "512Mi", ""])
def test_invalid_or_too_low_memory_limit_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit):
        Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}", f"--instance-memory-mib={text}"])


@pytest.mark.integration
@pytest.mark.parametrize("program", ["kube-controller-manager", "kube-scheduler"])
async def test_program_exits_normally_when_its_log_is_full(
    binaries: Binaries, tmp_path: Path, eventually: Eventually, program: str
) -> None:
    limit = 1000
    component = Component(
        name="a",
        program=program,
        args=("--help",),  # its output is much longer than the limit
        lifetime=Lifetime.BOUND,
        restart=RestartPolicy.NEVER,
        only_logs=True,
    )
    async with ProcessRuntime(
        tmp_path, programs=binaries.directories, log_limit_bytes=limit, pace=Pace(log_check=1000.0)
    ) as runtime:
        await runtime.apply(component)
        await eventually(lambda: runtime.state("a").phase is Phase.ENDED)
        assert runtime.state("a").exit_code == 0
        assert runtime.log_path("a").stat().st_size == 4 * limit
