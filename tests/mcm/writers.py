"""Who writes to a control plane, and when: told by the audit log of its API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from kplane.binaries.programs import Binaries
from kplane.provider import Client, ClusterConfig, ProviderError
from kplane.provider.client.resources import NAMESPACES, SERVICE_ACCOUNTS


def signing_program(directory: Path, *, name: str, binaries: Binaries) -> Path:
    """Make a kube-controller-manager that signs its requests with this name and the number of its process.

    It does so by argv[0], which is in the user agent.
    """
    directory.mkdir(exist_ok=True)
    program = directory / "kube-controller-manager"
    real = binaries.path("kube-controller-manager")
    program.write_text(f'#!/bin/bash\nexec -a "{name}.$$" "{real}" "$@"\n')
    program.chmod(0o700)
    return program


@contextlib.asynccontextmanager
async def kept_busy(*configs: ClusterConfig, name: str) -> AsyncIterator[None]:
    """Have the controllers of control planes write all the time: a ServiceAccount that each namespace has to have."""

    async def keep(client: Client) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        while True:
            with contextlib.suppress(ProviderError):  # it is gone already, or the machine too slow for the moment
                await client.delete(SERVICE_ACCOUNTS, "default", namespace=name)
            await asyncio.sleep(0.05)

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(config, field_manager="kplane")) for config in configs]
        tasks = [asyncio.create_task(keep(client)) for client in clients]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task, client in zip(tasks, clients, strict=True):
            assert task.cancelled(), task.exception()
            await client.delete(NAMESPACES, name)


class Span(NamedTuple):
    """When somebody wrote, from the arrival of the first request to the end of the last one."""

    began: float
    ended: float
    writer: str
    """Name of the replica, a dot, and the number of the process."""


def spans(audit: Path, *, prefix: str) -> list[Span]:
    """Tell who wrote to a control plane, of those whose programs sign with names that begin so."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in audit.read_text().splitlines(keepends=True):
        # The last line may be half of one.
        event = json.loads(line) if line.endswith("\n") else {}
        program = event.get("userAgent", "").partition("/")[0]
        if program.startswith(f"{prefix}."):
            received, done = (
                datetime.fromisoformat(event[each]).timestamp()
                for each in ("requestReceivedTimestamp", "stageTimestamp")
            )
            times[program.removeprefix(f"{prefix}.")].append((received, done))
    return sorted(
        Span(min(began for began, _ in found), max(ended for _, ended in found), writer)
        for writer, found in times.items()
    )
