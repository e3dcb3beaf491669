"""Of two operators only the leader works. The standby takes over after any fault, and the two never work together."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.embedded.handle import Handle

from .conftest import PROCESSES, start

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def create(pair: Any, name: str) -> None:
    typed = {"apiVersion": CONTROL_PLANES.api_version, "kind": CONTROL_PLANES.kind}
    spec = {"deletionPolicy": "Destroy"}
    await pair.client.create(CONTROL_PLANES, {**typed, "metadata": {"name": name}, "spec": spec})


async def ready_since(pair: Any, name: str) -> str | None:
    control_plane = await pair.client.get(CONTROL_PLANES, name)
    ready = [item for item in control_plane.get("status", {}).get("conditions", []) if item["type"] == "Ready"]
    return ready[0]["lastTransitionTime"] if ready and ready[0]["status"] == "True" else None


@pytest.mark.parametrize("one_directory", [True], indirect=True)
async def test_standby_takes_over_after_kill_of_leader(
    pair: Any, record_property: Callable[[str, object], None]
) -> None:
    await create(pair, "before")
    since = await pair.eventually(lambda: ready_since(pair, "before"), timeout=120.0)
    assert "[+]leader-election ok: leader" in await pair.first.ready()
    standby = await pair.second.ready()
    assert f"[+]leader-election ok: standby, the leader is {await pair.holder()}" in standby
    assert not await pair.second.leads()

    pair.first.signal(signal.SIGKILL)
    killed = time.monotonic()
    await create(pair, "after")
    await pair.eventually(pair.second.leads)
    took_over = time.monotonic() - killed
    await pair.eventually(lambda: ready_since(pair, "after"), timeout=120.0)
    first_write = min(write.at for write in pair.log if write.by == "second") - killed

    record_property("takeover_seconds", round(took_over, 2))
    record_property("first_write_seconds", round(first_write, 2))
    assert await ready_since(pair, "before") == since
    assert pair.alternations() == ["first", "second"]


async def test_stopped_leader_releases_its_lease_and_standby_works(
    pair: Any, record_property: Callable[[str, object], None]
) -> None:
    async with pair.busy():
        await pair.eventually(lambda: pair.log)
        pair.first.signal(signal.SIGTERM)
        stopped = time.monotonic()
        await pair.eventually(lambda: pair.log[-1].by == "second")
        record_property("handover_seconds", round(pair.log[-1].at - stopped, 2))
        assert await pair.first.ended(within=60.0) == 0
        # The standby need not wait for the expiry of the Lease.
        assert pair.first.way.held_by[-1] == ""
    assert pair.alternations() == ["first", "second"]


async def test_disconnected_leader_exits_without_late_writes(pair: Any) -> None:
    async with pair.busy():
        await pair.eventually(lambda: pair.log)
        pair.first.way.open.clear()
        await pair.eventually(pair.second.leads)
        pair.first.way.open.set()
        assert await pair.first.ended(within=60.0) == 1
        await pair.create_class("after")
        await pair.eventually(lambda: pair.worked_on("after"))
    assert pair.alternations() == ["first", "second"]


async def test_frozen_leader_exits_without_late_writes(pair: Any) -> None:
    async with pair.busy():
        await pair.eventually(lambda: pair.log)
        pair.first.signal(signal.SIGSTOP)
        await pair.eventually(lambda: pair.log[-1].by == "second")
        pair.first.signal(signal.SIGCONT)
        assert await pair.first.ended(within=60.0) == 1
    assert pair.alternations() == ["first", "second"]


async def test_leader_stays_the_same_after_deletion_of_the_lease(pair: Any) -> None:
    from kplane.provider.client.resources import LEASES

    holder = await pair.holder()
    await pair.client.delete(LEASES, "kplane-operator", namespace="kube-system")
    await pair.eventually(pair.holder, lambda found: found == holder)
    async with pair.busy():
        await pair.eventually(lambda: len(pair.log) > 3)
        await asyncio.sleep(0)
    assert pair.alternations() == ["first"]


async def test_operator_of_another_installation_exits_naming_the_first(
    pair: Any, api_server: Handle, hold_port: Callable[[], int], tmp_path: Path
) -> None:
    log = tmp_path / "third.log"
    third = await start(
        "third",
        way=pair.first.way,
        handle=api_server,
        state=tmp_path / "third",
        log=log,
        port=hold_port(),
        runtime=PROCESSES,
    )
    try:
        assert await third.ended(within=60.0) == 1
    finally:
        if third.process.returncode is None:
            third.signal(signal.SIGKILL)
            await third.process.wait()
    assert f"operator kplane-system/{socket.gethostname()} of another installation" in log.read_text()
    assert await pair.first.leads()
