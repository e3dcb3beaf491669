"""Kubernetes programs that run as clients of a control plane under test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from kplane.binaries.programs import Binaries
from kplane.provider import ClusterConfig


@contextlib.asynccontextmanager
async def running_controllers(
    config: ClusterConfig, *args: str, binaries: Binaries, directory: Path
) -> AsyncIterator[None]:
    """Run the controllers that `args` name, with this identity."""
    async with running_program("kube-controller-manager", config, *args, binaries=binaries, directory=directory):
        yield


@contextlib.asynccontextmanager
async def running_program(
    program: str, config: ClusterConfig, *args: str, binaries: Binaries, directory: Path
) -> AsyncIterator[None]:
    """Run a Kubernetes program as a client, with this identity."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(json.dumps(config.to_kubeconfig()))
    process = await asyncio.create_subprocess_exec(
        binaries.path(program),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        *args,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()
