"""Controls the processes that `benchmarks.provider` and `benchmarks.provider_trouble` measure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.surroundings import start_api_server
from kplane.binaries.programs import resolve
from kplane.embedded.credentials import write_private
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES
from kplane.workloads import ProcessRuntime

__all__ = ["NAMESPACE", "Worker", "fleet_server", "program_of", "reconciled", "shared_out", "started"]

NAMESPACE: Final = "benchmark"
"""Namespace of the objects that the benchmarks create and count."""

_LOG_BYTES: Final = 4000
_GO_SOURCE: Final = Path(__file__).parent / "multicluster_go" / "main.go"
_MODULE: Final = "sigs.k8s.io/multicluster-runtime"
_LINE_BYTES: Final = 1 << 24
_POLL_SECONDS: Final = 0.25


def _built(checkout: Path, *, directory: Path) -> tuple[str, ...]:
    """Build the worker of multicluster-runtime from a checkout. The first build takes minutes."""
    (directory / "main.go").write_text(_GO_SOURCE.read_text())
    module = [
        "module benchmarks",
        "go 1.26.0",
        f"require {_MODULE} v0.0.0",
        f"replace {_MODULE} => {checkout.absolute()}",
    ]
    (directory / "go.mod").write_text("\n".join(module))
    for command in (["go", "mod", "tidy"], ["go", "build", "-o", "worker", "."]):
        subprocess.run(command, cwd=directory, check=True, stdout=sys.stderr)
    return (str(directory / "worker"),)


class Worker:
    """A process that runs a manager, controlled by lines of JSON on its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid: Final = process.pid
        self._process = process

    async def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question and return the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the worker has no pipes")
        stdin.write(json.dumps(question).encode() + b"\n")
        await stdin.drain()
        line = await stdout.readline()
        if not line:
            raise RuntimeError(f"failed to ask the worker: it ended with status {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._process.kill()


@contextlib.contextmanager
def program_of(checkout: Path | None) -> Iterator[tuple[str, ...]]:
    """Yield the command of the worker: of `kplane.provider`, or of multicluster-runtime built from `checkout`."""
    if checkout is None:
        yield (sys.executable, "-m", "benchmarks.provider_worker")
        return
    with tempfile.TemporaryDirectory(prefix="kplane-benchmark-go-") as at:
        yield _built(checkout, directory=Path(at))


@contextlib.asynccontextmanager
async def fleet_server() -> AsyncIterator[tuple[Client, Path]]:
    """Run the API server that stands for each cluster. Yields an administrator's client and kubeconfig."""
    with tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as at:
        directory = Path(at)
        async with ProcessRuntime(
            directory / "state", programs=resolve().directories, log_limit_bytes=_LOG_BYTES
        ) as runtime:
            server = await start_api_server(runtime, "fleet", directory=directory)
            kubeconfig = directory / "kubeconfig"
            write_private(kubeconfig, content=server.kubeconfig())
            async with Client(server.administrator(), field_manager="kplane") as client:
                await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
                yield client, kubeconfig


@contextlib.asynccontextmanager
async def started(
    kubeconfig: Path,
    *,
    program: Sequence[str],
    kinds: int = 1,
    identity: str | None = None,
    hub: bool = False,
    probes: bool = True,
) -> AsyncIterator[Worker]:
    """Run the worker of `program_of` in the background.

    With an `identity`, the worker shares the clusters with its peers. With `hub`, it also watches its local cluster.
    Without `probes`, its clients do not probe silent API servers; the runtime for Go has no such option.
    """
    options: dict[str, Any] = {"kubeconfig": str(kubeconfig), "kinds": kinds, "identity": identity, "hub": hub}
    if not probes:
        options["probes"] = False
    process = await asyncio.create_subprocess_exec(
        *program,
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    try:
        yield Worker(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(60):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def shared_out(workers: Sequence[Worker], *, deadline_seconds: float) -> None:
    """Wait until each shard has an owner. The first time, this takes the duration of a Lease."""
    async with asyncio.timeout(deadline_seconds):
        while True:
            shards = [await each.ask(do="shards") for each in workers]
            if len(workers) == 1 or 0 < shards[0]["all"] == sum(each["owned"] for each in shards):
                return
            await asyncio.sleep(_POLL_SECONDS)


async def reconciled(workers: Sequence[Worker], *, until: int, deadline_seconds: float) -> float:
    """Wait for this number of reconciles, and return the time of the last reconcile on the monotonic clock."""
    async with asyncio.timeout(deadline_seconds):
        while True:
            counts = [await worker.ask(do="count") for worker in workers]
            done = sum(count["reconciles"] for count in counts)
            if done >= until:
                return max(float(count["last"]) for count in counts)
            await asyncio.sleep(_POLL_SECONDS)
