"""A supervisor whose components may run for two seconds at a time, until it says so again: `DIRECTORY`.

It prints the numbers of its component and of the process that ends it in time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kplane.workloads import Component, Lifetime, ProcessRuntime, Watchdog
from kplane.workloads.processes import watchdog as module

# So that a machine which stands still for a second ends nothing.
module._TELL_SECONDS = 0.1


async def main(directory: Path) -> None:
    watchdog = Watchdog(directory, until=lambda: {"plain": 2.0})
    async with (
        ProcessRuntime(directory, programs=[Path("/bin")]) as runtime,
        watchdog.running(on_failure=lambda: None),
    ):
        await watchdog.confirm()
        # Of the other kind, so that it is not the kernel that ends it.
        await runtime.apply(Component(name="plain", program="sleep", args=("1000",), lifetime=Lifetime.INDEPENDENT))
        print(runtime.state("plain").pid, watchdog.pid, flush=True)  # noqa: T201 - read by the test
        await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1])))
