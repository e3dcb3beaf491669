"""The page of `kplane ui` in a headless Chromium."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.cli.ui.fleet import show_fleet
from kplane.cli.ui.page import serving
from kplane.cli.usage import Usage

pytestmark = pytest.mark.integration

HOSTILE = "<img src=x onerror=document.title='stolen'>"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium() -> str:
    """Path of Chromium: the value of CHROMIUM, which CI sets and which has to be valid, or a program on PATH."""
    if named := os.environ.get("CHROMIUM"):
        return named
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is on PATH; install one, or name it by CHROMIUM")
    return program


def fleet(*control_planes: ControlPlane, **usages: Usage) -> dict[str, Any]:
    around = {"server": "https://127.0.0.1:6443", "unknown": [HOSTILE], "lookedAt": datetime.now(UTC).isoformat()}
    return {**around, **show_fleet(control_planes, [], usages=usages)}


def control_plane(name: str, **status: Any) -> ControlPlane:
    metadata = {"name": name, "creationTimestamp": "2026-11-26T01:00:00Z"}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})


async def page(chromium: str, content: dict[str, Any], directory: Path) -> str:
    """Return the document as it is after the scripts of the page have run."""
    async with serving(lambda: content, port=0) as address:
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}")
        process = await asyncio.create_subprocess_exec(
            chromium,
            *options,
            "--virtual-time-budget=3000",
            "--dump-dom",
            address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(60):
                printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return printed.decode()


async def test_page_draws_rows_and_totals(chromium: str, tmp_path: Path) -> None:
    content = fleet(
        control_plane("acme", phase="Ready", storage={"keys": 2150, "bytes": 4096, "growth": "Allowed"}),
        control_plane("globex", phase="Hibernated"),
        acme=Usage(name="acme", state="awake", memory_bytes=150 << 20, rate=2.5),
    )
    drawn = await page(chromium, content, tmp_path)
    assert "<strong>acme</strong>" in drawn
    assert '<span class="good">Ready</span>' in drawn
    assert '<span class="asleep">Hibernated</span>' in drawn
    assert '<td class="number">2,150</td><td class="number">4.0 KiB</td><td class="number">150.0 MiB</td>' in drawn
    assert "<strong>2</strong>" in drawn


async def test_page_renders_tenant_text_without_markup(chromium: str, tmp_path: Path) -> None:
    condition = {"type": "Ready", "status": "False", "reason": "Unavailable", "message": HOSTILE}
    condition["lastTransitionTime"] = "2026-11-26T01:00:00Z"
    drawn = await page(chromium, fleet(control_plane("acme", phase="Unavailable", conditions=[condition])), tmp_path)
    assert "&lt;img src=x" in drawn
    assert "<img" not in drawn
    assert "<title>kplane</title>" in drawn


async def test_page_of_empty_fleet_has_notice(chromium: str, tmp_path: Path) -> None:
    drawn = await page(chromium, fleet(), tmp_path)
    assert '<p id="none">There is no control plane.' in drawn
