"""Kills (-9) at each step of a migration: it completes, no write is lost, and two homes never take writes at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kplane.binaries.programs import Binaries
from kplane.components.names import apiserver_name, etcd_name
from kplane.embedded import components
from kplane.workloads import Pace, find_processes

from .ledger import Ledger
from .moving import Mover, moving_cluster, one_controller_manager
from .two_homes import intruding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

OPERATOR, MCM, GATEWAY, ENVOY = "operator", "mcm", "gateway controller", "Envoy"
SOURCE, TARGET = "source API server", "target API server"
SOURCE_ETCD, TARGET_ETCD = "source etcd", "target etcd"
ARRIVES_SECONDS = 150.0

PROGRAMS = (OPERATOR, MCM, GATEWAY, ENVOY, SOURCE, TARGET, SOURCE_ETCD, TARGET_ETCD)
STEPS = ("Preparing", "Copying", "Starting", "EndingControllers", "Cutting", "Retaining")
NEVER_THERE = {(TARGET, "Preparing"), (TARGET, "Copying")}
PERHAPS_NOT_THERE = {
    *itertools.product((SOURCE, SOURCE_ETCD), ["Retaining"]),
    *itertools.product((TARGET, TARGET_ETCD), STEPS),
}
"""Programs that may have stopped already, or may not have started yet."""
KILLS = [kill for kill in itertools.product(PROGRAMS, STEPS) if kill not in NEVER_THERE]
MOVES_EACH_WAY = 10
MOVES = [
    sorted(KILLS[move::MOVES_EACH_WAY], key=lambda kill: STEPS.index(kill[1]))
    for move in range(MOVES_EACH_WAY)
    for _ in ("there", "and back")
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries,
        name="survivor",
        eventually=eventually,
        namespaces_go_at_once=namespaces_go_at_once,
        # Short delays between restarts, as the test kills programs often.
        pace=Pace(restart_base=0.2, restart_limit=0.5),
    ) as mover:
        yield mover


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(mover: Mover) -> Ledger:
    ledger = Ledger(mover.config, size=1500, a_second=60.0)
    await ledger.fill()
    return ledger


def kill(mover: Mover, victim: str, *, step: str) -> None:
    handle = mover.cluster.handle
    runtime, homes = handle.directory / "runtime", [mover.migration[which] for which in ("from", "to")]

    def etcd(home: dict[str, Any]) -> Path:
        if home["mode"] == "Virtual":
            return runtime / components.TENANTS_ETCD
        return handle.operator_directory / etcd_name(mover.name, slot=home["slot"])

    servers = [handle.operator_directory / apiserver_name(mover.name, slot=home["slot"]) for home in homes]
    directories = {
        OPERATOR: runtime / components.OPERATOR,
        MCM: runtime / components.MCM,
        GATEWAY: runtime / components.GATEWAY,
        ENVOY: handle.directory / "gateway" / "runtime" / "envoy",
        SOURCE: servers[0],
        TARGET: servers[1],
        SOURCE_ETCD: etcd(homes[0]),
        TARGET_ETCD: etcd(homes[1]),
    }
    pids = find_processes(directories[victim])
    assert pids or (victim, step) in PERHAPS_NOT_THERE
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def told(kills: list[tuple[str, str]]) -> str:
    return ", ".join(f"{victim} at {step}" for victim, step in kills)


@pytest.mark.parametrize("kills", MOVES, ids=told)
async def test_migration_survives_kills_without_lost_writes(
    mover: Mover, ledger: Ledger, kills: list[tuple[str, str]], eventually: Callable[..., Any]
) -> None:
    source, mode = mover.status["home"]["slot"], "Virtual" if mover.mode == "Dedicated" else "Dedicated"
    with one_controller_manager(mover):
        async with intruding(mover) as intruders, ledger.written():
            await mover.ask(mode)
            for victim, step in kills:
                await mover.until(lambda step=step: step in mover.steps)
                kill(mover, victim, step=step)
            await mover.arrives(mode, timeout=ARRIVES_SECONDS)
            await mover.controllers_work()
            before = ledger.acknowledged
            await eventually(lambda: ledger.acknowledged > before + 20)
            await eventually(lambda: intruders.took(1 - source))
    assert intruders.late(former=source) == []
    assert await intruders.lost() == []
    assert await ledger.wrong() == []
