"""Fixture that runs benchmarks as their users do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., Awaitable[Any]]:
    """`await measure("fleet", *arguments)`: JSON of `python -m benchmarks.fleet`. Its stderr is file `errors`."""

    async def run(benchmark: str, *arguments: str) -> Any:
        with (tmp_path / "errors").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"benchmarks.{benchmark}",
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
            try:
                printed, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
        assert process.returncode == 0, (tmp_path / "errors").read_text()
        return json.loads(printed)

    return run
