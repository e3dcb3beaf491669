"""How often the status of one registration is written."""

from __future__ import annotations

from kplane.mcm.status.pace import WritePace


def write_at(times: list[float], *, burst: int = 3, period_seconds: float = 5.0) -> list[float]:
    """Return the delay before each of the writes that are asked for at these times."""
    now = 0.0
    pace, delays = WritePace(burst=burst, period_seconds=period_seconds, now=lambda: now), []
    for time in times:
        now = max(now, time)
        delays.append(pace.delay())
        now += delays[-1]
        pace.note_write()
    return delays


def test_burst_is_written_at_once_and_the_rest_once_a_period() -> None:
    assert write_at([100.0] * 6) == [0, 0, 0, 5, 5, 5]


def test_change_after_a_calm_time_is_written_at_once() -> None:
    assert write_at([100.0] * 4 + [200.0] * 4) == [0, 0, 0, 5, 0, 0, 0, 5]


def test_slow_changes_never_wait() -> None:
    assert write_at([100.0 + 5 * number for number in range(50)]) == [0] * 50


def test_reset_gives_the_allowance_back() -> None:
    pace = WritePace(burst=1, period_seconds=5.0, now=lambda: 100.0)
    pace.note_write()
    assert pace.delay() == 5
    pace.reset()
    assert pace.delay() == 0
