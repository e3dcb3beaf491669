"""The numbers that docs/reference/mcm.md and docs/how-to/drain-nodes.md promise, if other tests have shorter ones."""

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


def test_a_lease_is_renewed_every_30_s_or_its_instance_ends_after_90_of_120_and_an_instance_may_hang_for_90() -> None:
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


def test_a_log_is_cut_above_1_mib_of_which_mcm_looks_each_second() -> None:
    assert (LOG_BYTES, Pace().log_check) == (1 << 20, 1.0)


def test_an_instance_that_ended_is_started_again_after_1_to_300_s() -> None:
    pace = Pace()
    assert (pace.restart_base, pace.restart_limit, pace.stable) == (1.0, 300.0, 300.0)


def test_an_instance_has_2_s_for_its_metrics_and_all_have_5() -> None:
    limits = ScrapeLimits()
    assert (limits.deadline_seconds, limits.timeout_seconds, limits.bytes_each) == (5.0, 2.0, 4 << 20)


def test_a_change_has_settled_after_2_s(tmp_path: Path) -> None:
    programs = Programs(runtime=ProcessRuntime(tmp_path, programs=()))
    assert DebouncingProvider(Nobody(), programs=programs).seconds == 2.0


def test_what_an_instance_may_take(tmp_path: Path) -> None:
    settings = Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}"])
    assert settings.instance_memory_mib == 512
    assert (ENVIRONMENT["GOGC"], ENVIRONMENT["GOMAXPROCS"]) == ("20", "1")
