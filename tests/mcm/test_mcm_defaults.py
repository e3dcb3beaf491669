"""The numbers that docs/mcm.md and docs/operate.md promise, where other tests have shorter ones."""

from __future__ import annotations

from pathlib import Path

from mcm.configuration import ENVIRONMENT
from mcm.guard import GuardPace
from mcm.programs import Programs
from mcm.scrape import ScrapeLimits
from mcm.settings import Settings
from mcm.settling import Settling
from provider import Fleet
from workloads import ProcessRuntime


class Nobody:
    """A provider without clusters."""

    name = "nobody"

    async def run(self, fleet: Fleet) -> None: ...


def test_an_api_server_is_looked_at_every_10_s_and_may_be_away_for_60() -> None:
    assert GuardPace() == GuardPace(
        look=10.0, timeout=5.0, grace=60.0, retry_initial=1.0, retry_maximum=60.0, stable=60.0
    )


def test_an_instance_has_2_s_for_its_metrics_and_all_have_5() -> None:
    limits = ScrapeLimits()
    assert (limits.deadline_seconds, limits.timeout_seconds, limits.bytes_each) == (5.0, 2.0, 4 << 20)


def test_a_change_has_settled_after_2_s(tmp_path: Path) -> None:
    programs = Programs(runtime=ProcessRuntime(tmp_path, programs=()))
    assert Settling(Nobody(), programs=programs).seconds == 2.0


def test_what_an_instance_may_take(tmp_path: Path) -> None:
    settings = Settings.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}"])
    assert settings.instance_memory_mib == 512
    assert (ENVIRONMENT["GOGC"], ENVIRONMENT["GOMAXPROCS"]) == ("20", "1")
