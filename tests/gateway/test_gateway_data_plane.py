"""Which requests wait while Envoy learns what has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from kplane.gateway.data_plane import DataPlane

from .fleet import no_waker, route, serving


async def test_requests_wait_for_those_that_move_and_for_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker = no_waker()
    plane = DataPlane(tmp_path / "g", validate=AsyncMock(), program=Path("envoy"), runtime=None, waker=waker)
    monkeypatch.setattr(plane, "ready", AsyncMock(return_value=True))
    async with plane.running():
        assert await plane.apply([route(name) for name in "abc"], serving=serving()) == {}
        moved = {name: route(name, port=7443) for name in "ab"}
        for name, there in moved.items():
            plane.update({name: there})
        waiting = [asyncio.create_task(waker.passage(f"uid-{name}")) for name in "ab"]
        await waker.passage("uid-c")
        await asyncio.sleep(0)
        assert waker.waiting == 2
        assert await plane.apply([*moved.values(), route("c")], serving=serving()) == {}
        assert await asyncio.gather(*waiting) == [*moved.values()]
