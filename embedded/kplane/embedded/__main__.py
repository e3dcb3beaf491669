"""Runs a management cluster in the foreground until SIGTERM."""

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

from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries, BinariesError, resolve
from kplane.embedded.cluster import ManagementCluster
from kplane.embedded.errors import EmbeddedError, leaves
from kplane.pki.errors import PkiError
from kplane.provider import ProviderError
from kplane.workloads import WorkloadsError

__all__ = ["main"]

logger = logging.getLogger("kplane.embedded")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until a failure (status 1, the cause on standard error)."""
    given = _parse(arguments)
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
            gateway=find_envoy() if given.gateway else None,
            kwok=given.kwok,
        )
        uvloop.run(_serve(cluster, until_stdin_closes=given.until_stdin_closes))
    except* (BinariesError, EmbeddedError, OSError, PkiError, ProviderError, WorkloadsError) as group:
        for error in leaves(group):
            logger.critical("%s", error)
        status = 1
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kplane.embedded", description=__doc__, allow_abbrev=False)
    for name, text in (
        ("--kubernetes-programs", "directory of kube-apiserver, kubectl and others; default: as kplane.binaries"),
        ("--etcd-programs", "directory of etcd; default: as kplane.binaries"),
    ):
        parser.add_argument(name, type=Path, metavar="DIRECTORY", help=text)
    for name, text in (
        ("--no-operators", "start only etcd, kube-apiserver and its controllers"),
        ("--no-manifests", "install no CRDs and no RBAC; needs --no-operators"),
        ("--gateway", "start a gateway in front of the control planes; needs the operators, and Envoy"),
        ("--no-fsync", "write faster; a crash of the machine can lose data"),
        ("--until-stdin-closes", "end when standard input closes"),
    ):
        parser.add_argument(name, action="store_true", help=text)
    text = "the program kwok, which then plays nodes in control planes that ask for them; needs the operators"
    parser.add_argument("--kwok", type=Path, metavar="PROGRAM", help=text)
    text = "directory for data, credentials, logs and ready.json"
    parser.add_argument("--directory", type=Path, required=True, help=text)
    given = parser.parse_args(arguments)
    if given.no_manifests and not given.no_operators:
        parser.error("--no-manifests needs --no-operators: the operators need the CRDs and the RBAC")
    if given.gateway and given.no_operators:
        parser.error("--gateway needs the operators: leave out --no-operators")
    if given.kwok is not None and given.no_operators:
        parser.error("--kwok needs the operators: leave out --no-operators")
    return given


def _programs(kubernetes: Path | None, etcd: Path | None) -> Binaries:
    if kubernetes is not None and etcd is not None:
        return Binaries.of_runtime(kubernetes=kubernetes, etcd=etcd)
    binaries = resolve()
    return Binaries.of_runtime(kubernetes=kubernetes or binaries.kubernetes, etcd=etcd or binaries.etcd)


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
    # A closed standard input stays readable forever.
    if until_stdin_closes:
        loop.remove_reader(sys.stdin.fileno())
    # Cancel once: a second cancellation would interrupt the clean-up that the first cancellation starts.
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
