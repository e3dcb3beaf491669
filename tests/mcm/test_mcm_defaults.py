"""Times and limits that docs/reference/mcm.md and docs/how-to/drain-nodes.md promise. Other tests use shorter times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kplane.mcm.describe.controllers import ENVIRONMENT
from kplane.mcm.describe.programs import Programs
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.instance.tenant_lease import TIMINGS
from kplane.mcm.main import LOG_BYTES
from kplane.mcm.serving.scrape import ScrapeLimits
from kplane.mcm.settings import Settings
from kplane.mcm.source.debounce import DebouncingProvider
from kplane.provider import Fleet
from kplane.workloads import Pace, ProcessRuntime


class Nobody:
    """A provider without clusters."""

    name = "nobody"

    async def run(self, fleet: Fleet) -> None: ...


def test_lease_lasts_120_s_and_start_gate_has_documented_pace() -> None:
    assert TIMINGS.duration_seconds == 120
    assert dataclasses.asdict(GatePace()) == {
        "look": 30.0,
        "timeout": 5.0,
        "retry": 5.0,
        "grace": 90.0,
        "retry_initial": 1.0,
        "retry_maximum": 60.0,
        "stable": 60.0,
        "hung": 90.0,
        "hung_maximum": 900.0,
    }


def test_log_limit_is_1_mib_and_is_checked_every_second() -> None:
    assert (LOG_BYTES, Pace().log_check) == (1 << 20, 1.0)


def test_restart_delay_is_1_to_300_s() -> None:
    pace = Pace()
    assert (pace.restart_base, pace.restart_limit, pace.stable) == (1.0, 300.0, 300.0)


def test_scrape_timeout_is_2_s_for_an_instance_and_5_s_for_all() -> None:
    limits = ScrapeLimits()
    assert (limits.deadline_seconds, limits.timeout_seconds, limits.bytes_each) == (5.0, 2.0, 4 << 20)


def test_debounce_delay_is_2_s(tmp_path: Path) -> None:
    programs = Programs(runtime=ProcessRuntime(tmp_path, programs=()))
    assert DebouncingProvider(Nobody(), programs=programs).seconds == 2.0


def test_instance_memory_limit_is_512_mib_and_go_uses_one_cpu(tmp_path: Path) -> None:
    settings = Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}"])
    assert settings.instance_memory_mib == 512
    assert (ENVIRONMENT["GOGC"], ENVIRONMENT["GOMAXPROCS"]) == ("20", "1")
