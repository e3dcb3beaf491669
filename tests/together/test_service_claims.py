"""Several registrations of a control plane: at most a single kube-controller-manager runs at any time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import NotFound

from .conftest import KINDS, pids_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

REGISTRATION = "ControlPlaneRegistration"


def at_work(platform: Any) -> set[int]:
    """Return the pids of kube-controller-managers, of every mcm. This module has a single tenant."""
    handle = platform.handle
    directories = (handle.mcm_directory, handle.operator_directory)
    return {pid for directory in directories for pid in pids_of(Path(directory), "kube-controller-manager --")}


@contextlib.asynccontextmanager
async def watched(platform: Any) -> AsyncIterator[list[set[int]]]:
    """Poll the processes without pause, and record each changed set of pids."""
    pid_sets: list[set[int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            if (pids := at_work(platform)) != (pid_sets[-1] if pid_sets else None):
                pid_sets.append(pids)

    looking = asyncio.create_task(asyncio.to_thread(look))
    try:
        yield pid_sets
    finally:
        over.set()
        await looking


async def register(platform: Any, name: str, **spec: Any) -> tuple[str, str]:
    registration_spec = {"controlPlaneRef": {"name": "one"}, "services": ["Controllers"], **spec}
    metadata = (await platform.create(REGISTRATION, name, **registration_spec))["metadata"]
    return metadata["creationTimestamp"], metadata["uid"]


async def says(platform: Any, name: str, reason: str) -> None:
    """Wait until `reason` is the reason of condition Ready. Reason "gone" waits for the deletion."""

    async def reasons() -> set[str]:
        try:
            conditions = (await platform.status(REGISTRATION, name)).get("conditions") or []
        except NotFound:
            return {"gone"}
        return {condition["reason"] for condition in conditions if condition["type"] == "Ready"}

    await platform.eventually(reasons, lambda found: found == {reason})


@pytest.mark.slow
async def test_at_most_one_controller_manager_runs_during_takeovers(platform: Any) -> None:
    async with watched(platform) as pid_sets:
        ages = {name: await register(platform, name) for name in ("first", "second")}
        await platform.create("ControlPlane", "one", deletionPolicy="Destroy")
        elder, younger = sorted(ages, key=lambda name: ages[name])
        pid = await platform.running(elder)
        await says(platform, younger, "ServiceTaken")

        # A stopped process does not handle SIGTERM. It ends after the grace period of mcm.
        os.kill(pid, signal.SIGSTOP)
        await platform.client.delete(KINDS[REGISTRATION], elder)
        await platform.running(younger)
        await says(platform, elder, "gone")

        # The next registration has mode Dedicated, and so another mcm.
        await register(platform, "dedicated", mode="Dedicated")
        await says(platform, "dedicated", "ServiceTaken")
        os.kill(await platform.running(younger), signal.SIGSTOP)
        await platform.client.patch(KINDS[REGISTRATION], younger, {"spec": {"services": ["Scheduler"]}})
        await says(platform, "dedicated", "Resolved")
        await platform.eventually(lambda: len(at_work(platform)) == 1)

        # The older registration takes the service back.
        await platform.client.patch(KINDS[REGISTRATION], younger, {"spec": {"services": ["Controllers"]}})
        await says(platform, "dedicated", "ServiceTaken")
        await platform.running(younger)
    assert max(map(len, pid_sets)) == 1
    assert len(set().union(*pid_sets)) == 4
