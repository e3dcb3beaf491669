"""A supervised real etcd keeps its data through a crash, and runs on through a restart of the runtime."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kplane.workloads import DATA, Component, Phase, Port, Probe, run_program

# Other tests of this directory run on each event loop. The behaviour of etcd depends on no event loop.
pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_factories=["uvloop"])]


async def test_etcd_keeps_data_after_kill_and_pid_over_runtime_restart(sandbox, binaries) -> None:
    async with sandbox.runtime(programs=binaries.directories) as runtime:
        address = await runtime.reserve("etcd", ports=["client", "peer"])
        client, peer = (f"http://127.0.0.1:{address.ports[name]}" for name in ("client", "peer"))
        etcd = Component(
            name="etcd",
            program="etcd",
            args=(
                f"--data-dir={DATA}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ),
            ports=tuple(Port(number=number, name=name) for name, number in address.ports.items()),
            data=True,
            readiness=Probe(port="client", path="/readyz"),
        )
        await runtime.apply(etcd)
        pid = (await sandbox.phase(runtime, "etcd", Phase.READY)).pid
        await etcdctl(binaries, client, "put", "key", "value")
        os.kill(pid, signal.SIGKILL)
        pid = (await sandbox.phase(runtime, "etcd", Phase.READY, restarts=1)).pid
        assert await etcdctl(binaries, client, "get", "key", "--print-value-only") == b"value\n"

    async with sandbox.runtime(programs=binaries.directories) as runtime:
        await runtime.apply(etcd)
        await sandbox.phase(runtime, "etcd", Phase.READY, pid=pid)
        await runtime.stop("etcd")
        assert runtime.state("etcd").exit_code in {0, -signal.SIGTERM}


async def etcdctl(binaries, endpoint: str, *args: str) -> bytes:
    program: Path = binaries.path("etcdctl")
    return await run_program(program, [f"--endpoints={endpoint}", *args], timeout_seconds=60.0)
