"""What a process of kplane does about the garbage collector while it serves."""

from __future__ import annotations

import asyncio
import gc

from kplane.provider.serving.process import run_until_signalled


async def test_while_it_serves_the_collector_leaves_out_what_was_imported() -> None:
    before, seen = gc.get_threshold(), list[bool]()

    async def run(_stop: asyncio.Event) -> None:
        seen.extend((gc.get_threshold()[0] > before[0], gc.get_freeze_count() > 1000))

    await run_until_signalled(run)
    assert seen == [True, True]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
