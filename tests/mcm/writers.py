"""Writers of a control plane and the times of their writes, from the audit log of its API server."""

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
    """Make a kube-controller-manager whose user agent contains `name` and its pid.

    The script sets them as argv[0], which is part of the user agent.
    """
    directory.mkdir(exist_ok=True)
    program = directory / "kube-controller-manager"
    real = binaries.path("kube-controller-manager")
    program.write_text(f'#!/bin/bash\nexec -a "{name}.$$" "{real}" "$@"\n')
    program.chmod(0o700)
    return program


@contextlib.asynccontextmanager
async def kept_busy(*configs: ClusterConfig, name: str) -> AsyncIterator[None]:
    """Make controllers write continuously, by deletions of a ServiceAccount that each namespace has to have."""

    async def keep(client: Client) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        while True:
            with contextlib.suppress(ProviderError):  # already gone, or the machine is too slow for a moment
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
    """Time of the writes of one writer, from the arrival of its first request to the end of its last request."""

    began: float
    ended: float
    writer: str
    """Name of the replica, a dot, and the pid."""


def spans(audit: Path, *, prefix: str) -> list[Span]:
    """Return the spans of all writers whose program names begin with `prefix`, in the order of their begin."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in audit.read_text().splitlines(keepends=True):
        # The last line may be incomplete.
        event = json.loads(line) if line.endswith("\n") else {}
        program = event.get("userAgent", "").partition("/")[0]
        if program.startswith(f"{prefix}."):
            received, done = (
                datetime.fromisoformat(event[field]).timestamp()
                for field in ("requestReceivedTimestamp", "stageTimestamp")
            )
            times[program.removeprefix(f"{prefix}.")].append((received, done))
    return sorted(
        Span(min(began for began, _ in intervals), max(ended for _, ended in intervals), writer)
        for writer, intervals in times.items()
    )
