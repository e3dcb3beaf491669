"""`python -m embedded --directory D`: runs a management cluster in the foreground until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from kplane.binaries.programs import Binaries, BinariesError, resolve
from kplane.controlplane_operator.errors import OperatorError
from kplane.embedded.cluster import ManagementCluster
from kplane.embedded.errors import EmbeddedError, leaves
from kplane.provider import ProviderError
from kplane.workloads import WorkloadsError

__all__ = ["main"]

logger = logging.getLogger("embedded")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until something fails (status 1, the cause on standard error)."""
    parser = argparse.ArgumentParser(prog="python -m embedded", description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="for data, credentials, logs and ready.json")
    parser.add_argument("--kubernetes-programs", type=Path, help="where kube-apiserver and others are; default: found")
    parser.add_argument("--etcd-programs", type=Path, help="where etcd is; default: found")
    parser.add_argument("--no-operators", action="store_true", help="only etcd, kube-apiserver and its controllers")
    parser.add_argument("--no-manifests", action="store_true", help="no CRDs, RBAC and tenants' etcd of kplane's")
    parser.add_argument("--no-fsync", action="store_true", help="faster; a crash of the machine loses data")
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end when the process at the other end of it does"
    )
    given = parser.parse_args(arguments)
    if given.no_manifests and not given.no_operators:
        parser.error("--no-manifests needs --no-operators as well: the operators work with what the manifests install")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    status = 0
    try:
        binaries = _programs(given.kubernetes_programs, given.etcd_programs)
        cluster = ManagementCluster(
            given.directory,
            binaries=binaries,
            operators=not given.no_operators,
            manifests=not given.no_manifests,
            fsync=not given.no_fsync,
        )
        uvloop.run(_serve(cluster, until_stdin_closes=given.until_stdin_closes))
    except* (BinariesError, EmbeddedError, OperatorError, OSError, ProviderError, WorkloadsError) as group:
        for error in leaves(group):
            logger.critical("%s", error)
        status = 1
    return status


def _programs(kubernetes: Path | None, etcd: Path | None) -> Binaries:
    if kubernetes is not None and etcd is not None:
        return Binaries.of_runtime(kubernetes=kubernetes, etcd=etcd)
    found = resolve()
    return Binaries.of_runtime(kubernetes=kubernetes or found.kubernetes, etcd=etcd or found.etcd)


async def _serve(cluster: ManagementCluster, *, until_stdin_closes: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), lambda: stop.set() if not os.read(sys.stdin.fileno(), 4096) else None)
    running = asyncio.create_task(_run(cluster), name="management cluster")
    asked = asyncio.create_task(stop.wait(), name="wait for the request to stop")
    await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
    # Closed, standard input stays readable for ever.
    if until_stdin_closes:
        loop.remove_reader(sys.stdin.fileno())
    # Once and no more: a second one would interrupt the clean-up that the first one begins.
    for task in (running, asked):
        task.cancel()
    await asyncio.wait((running, asked))
    if not running.cancelled():
        running.result()


async def _run(cluster: ManagementCluster) -> None:
    async with cluster:
        logger.info("ready: %s, seconds: %s", cluster.handle.server, dict(cluster.handle.seconds))
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
