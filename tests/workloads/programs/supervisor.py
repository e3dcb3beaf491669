"""Run a component until killed: `supervisor.py DIRECTORY NAME LIFETIME SCRIPT`. Prints the pid of the component."""

import asyncio
import sys
from pathlib import Path

from kplane.workloads import Component, Lifetime, ProcessRuntime


async def main() -> None:
    directory, name, lifetime, script = sys.argv[1:]
    async with ProcessRuntime(Path(directory), programs=[Path("/bin")]) as runtime:
        await runtime.apply(Component(name=name, program="sh", args=("-c", script), lifetime=Lifetime(lifetime)))
        print(runtime.state(name).pid, flush=True)  # noqa: T201 - read by the test
        await asyncio.Event().wait()


asyncio.run(main())
