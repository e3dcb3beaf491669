"""Makes the data of a component by a command, before its first start."""

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
    """Run `Component.prepare` unless the data have what it makes. An end at any point leaves all of that or nothing.

    Raises RuntimeFailure, ProgramFailed and ProgramTimedOut.
    """
    wanted = component.prepare
    if wanted is None or (directory.data / wanted.creates).exists():
        return
    program = find_program(wanted.program, programs=programs, of=f"Component {component.name}")
    made = directory.path / "data.new"
    try:
        directory.create(data=True)
        directory.write_files(component.files)
        await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)
        args = [arg.replace(FILES, str(directory.files)).replace(DATA, str(made)) for arg in wanted.args]
        await run_program(program, args, timeout_seconds=_SECONDS)
        (made / wanted.creates).rename(directory.data / wanted.creates)
        await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)
    except OSError as error:
        raise RuntimeFailure(f"Component {component.name}: its data cannot be prepared: {error}.") from error
