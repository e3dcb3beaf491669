"""Migration to mode Dedicated and back, under writers that never retry: no acknowledged write is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from kplane.binaries.programs import Binaries

from .informed import informed
from .ledger import Ledger
from .moving import Mover, moving_cluster, one_controller_manager

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

SIZE = int(os.environ.get("KPLANE_LEDGER_SIZE", "5000"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries, name="mover", eventually=eventually, namespaces_go_at_once=namespaces_go_at_once
    ) as mover:
        yield mover


async def test_migration_loses_no_write_and_clients_see_no_error(
    mover: Mover, eventually: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    ledger = Ledger(mover.config, size=SIZE)
    await ledger.fill()
    assert len(ledger.kinds) >= 20
    hold_seconds: dict[str, float] = {}
    with one_controller_manager(mover) as none_runs:
        async with informed(mover.config, eventually=eventually):
            for mode in ("Dedicated", "Virtual"):
                async with ledger.written():
                    await mover.ask(mode)
                    await mover.until(lambda: mover.step == "Cutting")
                    assert none_runs()
                    migration = await mover.arrives(mode)
                    await mover.controllers_work()
                hold_seconds[mode] = migration["holdMilliseconds"] / 1000
                assert ledger.errors == []
                assert await ledger.wrong() == []
    summary = f"{ledger.acknowledged} writes, {ledger.conflicts} conflicts, slowest {ledger.slowest_seconds:.2f} s"
    sys.stdout.write(f"held {hold_seconds} s; {summary}\n")
    record_property("hold_seconds", hold_seconds)
    record_property("slowest_write_seconds", ledger.slowest_seconds)
    assert max(hold_seconds.values()) <= 5.0
