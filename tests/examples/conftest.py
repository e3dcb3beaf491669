"""Fixtures for tests of the examples."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import Client, ClusterConfig

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
async def client(api_server: Any) -> AsyncIterator[Client]:
    """Client of the administrator of the real API server."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield client


@pytest.fixture
def running(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Path]]:
    """`async with running("hub/rollouts.py", *arguments, KUBECONFIG=path) as log`: run an example until SIGTERM.

    The example must exit with status 0. Keywords are environment variables. `log` is the path of the log file.
    """
    numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def run(program: str, *arguments: object, **environment: object) -> AsyncIterator[Path]:
        path = tmp_path / f"{next(numbers)}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, EXAMPLES / program, *map(str, arguments)),
                cwd=tmp_path,
                env={**os.environ, **{name: str(value) for name, value in environment.items()}},
                stderr=log,
            )
        try:
            yield path
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0, path.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    return run


@pytest.fixture
def install_crd(client: Client, kubectl: Any, api_server: Any) -> Callable[..., Any]:
    """`await install_crd("hub/crd.yaml")`: install the CRD of an example on the real API server."""

    async def install(path: str) -> None:
        manifest = str(EXAMPLES / path)
        await kubectl(api_server.admin_kubeconfig, "apply", "--server-side", "-f", manifest)
        await kubectl(api_server.admin_kubeconfig, "wait", "--for=condition=Established", "-f", manifest)

    return install
