"""Several registrations of one control plane never have two controller managers at work, as its processes show."""

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
    """The controller managers of tenants, whichever mcm runs them: this module has one tenant."""
    handle = platform.handle
    directories = (handle.mcm_directory, handle.operator_directory)
    return {pid for each in directories for pid in pids_of(Path(each), "kube-controller-manager --")}


@contextlib.asynccontextmanager
async def watched(platform: Any) -> AsyncIterator[list[set[int]]]:
    """Look at the processes all the time, and note each set of them that is another one than before."""
    seen: list[set[int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            if (found := at_work(platform)) != (seen[-1] if seen else None):
                seen.append(found)

    looking = asyncio.create_task(asyncio.to_thread(look))
    try:
        yield seen
    finally:
        over.set()
        await looking


async def register(platform: Any, name: str, **spec: Any) -> tuple[str, str]:
    asked = {"controlPlaneRef": {"name": "one"}, "services": ["Controllers"], **spec}
    found = (await platform.create(REGISTRATION, name, **asked))["metadata"]
    return found["creationTimestamp"], found["uid"]


async def says(platform: Any, name: str, reason: str) -> None:
    """Wait until this is the reason of its condition Ready, or until it is gone."""

    async def reasons() -> set[str]:
        try:
            conditions = (await platform.status(REGISTRATION, name)).get("conditions") or []
        except NotFound:
            return {"gone"}
        return {found["reason"] for found in conditions if found["type"] == "Ready"}

    await platform.eventually(reasons, lambda found: found == {reason})


@pytest.mark.slow
async def test_no_two_run_while_one_takes_over_from_the_other(platform: Any) -> None:
    async with watched(platform) as seen:
        ages = {name: await register(platform, name) for name in ("first", "second")}
        await platform.create("ControlPlane", "one", deletionPolicy="Destroy")
        elder, younger = sorted(ages, key=lambda name: ages[name])
        pid = await platform.running(elder)
        await says(platform, younger, "ServiceTaken")

        # Its end takes as long as mcm gives it, because it hears of no signal.
        os.kill(pid, signal.SIGSTOP)
        await platform.client.delete(KINDS[REGISTRATION], elder)
        await platform.running(younger)
        await says(platform, elder, "gone")

        # Another mcm has the next one: it is of mode Dedicated.
        await register(platform, "dedicated", mode="Dedicated")
        await says(platform, "dedicated", "ServiceTaken")
        os.kill(await platform.running(younger), signal.SIGSTOP)
        await platform.client.patch(KINDS[REGISTRATION], younger, {"spec": {"services": ["Scheduler"]}})
        await says(platform, "dedicated", "Resolved")
        await platform.eventually(lambda: len(at_work(platform)) == 1)

        # And back, to one that is older.
        await platform.client.patch(KINDS[REGISTRATION], younger, {"spec": {"services": ["Controllers"]}})
        await says(platform, "dedicated", "ServiceTaken")
        await platform.running(younger)
    assert max(map(len, seen)) == 1
    assert len(set().union(*seen)) == 4
