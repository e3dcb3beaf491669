"""A supervisor whose component may run for two seconds after each renewal: `watched_supervisor.py DIRECTORY`.

It prints the pid of the component, and the pid of the reaper that ends the component after this time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from kplane.workloads import Component, Lifetime, ProcessRuntime, Watchdog
from kplane.workloads.processes import watchdog as module

# Renewals are frequent, so that a machine that stalls for a second does not end the component.
module._TELL_SECONDS = 0.1


async def main(directory: Path) -> None:
    watchdog = Watchdog(directory, until=lambda: {"plain": 2.0})
    async with (
        ProcessRuntime(directory, programs=[Path("/bin")]) as runtime,
        watchdog.running(on_failure=lambda: None),
    ):
        await watchdog.confirm()
        # INDEPENDENT, because the kernel ends a BOUND component together with its supervisor.
        await runtime.apply(Component(name="plain", program="sleep", args=("1000",), lifetime=Lifetime.INDEPENDENT))
        print(runtime.state("plain").pid, watchdog.pid, flush=True)  # noqa: T201 - read by the test
        await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1])))
