"""Time of the last measurement, as the page shows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kplane.cli.ui import server
from kplane.cli.ui.server import Measured
from kplane.provider import Unreachable
from kplane.provider.errors import Forbidden


class Meter:
    """Answers the first measurement and fails all later ones."""

    problems = ()

    def __init__(self, _: Any, programs: Any) -> None:
        assert programs is None
        self.looks = 0
        self.failed = asyncio.Event()
        Meter.made = self

    made: Meter

    async def look(self) -> list[Any]:
        self.looks += 1
        if self.looks == 1:
            return []
        if self.looks > 3:
            self.failed.set()
        raise Unreachable("no answer", kind="timeout")


async def test_unreachable_server_keeps_time_of_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_: Any) -> None:
        raise Forbidden(403, "Forbidden", "pods")

    monkeypatch.setattr(server, "UsageMeter", Meter)
    monkeypatch.setattr(server, "find_programs", refused)
    monkeypatch.setattr(server, "_MEASURED_SECONDS", 0.0)
    control_planes: Any = type("ControlPlanes", (), {"client": None})
    measured = Measured()
    assert measured.looked_at is None
    task = asyncio.create_task(measured.measure(control_planes))
    try:
        await asyncio.sleep(0)
        looked_at = measured.looked_at
        await asyncio.wait_for(Meter.made.failed.wait(), 20)
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert looked_at is not None
    assert (measured.looked_at, measured.problems) == (looked_at, ["no answer"])
