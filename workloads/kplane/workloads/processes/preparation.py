"""Makes the data of a component with a command, before a start without data."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.workloads.component import DATA, FILES, Component
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.program import find_program, run_program

__all__ = ["prepare_data"]

_SECONDS: Final = 60.0


async def prepare_data(component: Component, *, directory: ComponentDirectory, programs: Sequence[Path]) -> None:
    """Run `Component.prepare`, unless the data contain its result.

    The result is complete or absent, even if this process ends at any point. Raises RuntimeFailure, ProgramFailed and
    ProgramTimedOut.
    """
    preparation = component.prepare
    if preparation is None or (directory.data / preparation.creates).exists():
        return
    program = find_program(preparation.program, programs=programs, of=f"Component {component.name}")
    staging = directory.path / "data.new"
    try:
        directory.create(data=True)
        directory.write_files(component.files)
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        args = [arg.replace(FILES, str(directory.files)).replace(DATA, str(staging)) for arg in preparation.args]
        await run_program(program, args, timeout_seconds=_SECONDS)
        (staging / preparation.creates).rename(directory.data / preparation.creates)
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    except OSError as error:
        raise RuntimeFailure(f"Component {component.name}: its data cannot be prepared: {error}.") from error
