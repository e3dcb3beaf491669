"""Liveness: failed probes of a hanging process, and late probes of a suspended machine."""

from __future__ import annotations

import time

from kplane.workloads.processes.probing import Liveness


def liveness() -> Liveness:
    return Liveness(failures=3, start_seconds=60.0)


def answers(judge: Liveness, *problems: str | None, late: bool = False, seconds: float = 10.0) -> list[str | None]:
    return [judge.judge(problem, seconds=seconds, late=late) for problem in problems]


def test_consecutive_failures_mean_that_the_process_hangs() -> None:
    judge = liveness()
    assert answers(judge, None, "no answer", "no answer", None, "no answer", "no answer") == [None] * 6
    assert answers(judge, "no answer") == ["no answer, 3 times in a row"]


def test_process_without_an_answer_gets_the_start_time() -> None:
    assert answers(liveness(), *["refused"] * 6) == [*[None] * 5, "refused, 6 times in a row"]


def test_failures_of_a_suspended_machine_do_not_count() -> None:
    judge = liveness()
    assert answers(judge, None, "no answer", "no answer") == [None] * 3
    # The probe due during the suspension, and the probes right after the suspension.
    assert answers(judge, "no answer", late=True, seconds=3600.0) == [None]
    assert answers(judge, "no answer", "no answer", None) == [None] * 3


async def test_late_probe_does_not_count_as_failure() -> None:
    class Starved:
        timeout_seconds = 0.01

        async def check(self) -> str:
            time.sleep(1.1)  # noqa: ASYNC251 - as a supervisor that gets no processor time
            return "no answer"

    class Silent(Starved):
        async def check(self) -> str:
            return "no answer"

    judge = Liveness(failures=1, start_seconds=0.0)
    assert await judge.watch(Starved(), interval_seconds=0.0) is None  # type: ignore[arg-type]
    assert await judge.watch(Silent(), interval_seconds=0.0) == "no answer, 1 times in a row"  # type: ignore[arg-type]
