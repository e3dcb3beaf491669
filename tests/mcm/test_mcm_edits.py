"""Edits of a registration in a row, at the pace of production; `test_mcm_settling` has all cases in made-up time."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mcm_edits"),
    pytest.mark.timeout(300),
]

Eventually = Callable[..., Any]
Fleet = Any
_IN_A_ROW_SECONDS = 1.5
"""Edits that take no longer are one to mcm, which waits for 2 s after each."""


async def test_edits_in_a_row_come_to_one_restart_and_to_none_where_they_lead_back(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    server = tenants["one"].server

    def told_of(words: str) -> int:
        return int(mcm.log.read_text().count(words))

    async def edit(*profiles: str) -> bool:
        """Ask for one profile after the other; whether that was fast enough to be one change."""
        began = time.monotonic()
        for profile in profiles:
            await fleet.resolve("a", server=server, secret="a", profile=profile)
        return time.monotonic() - began < _IN_A_ROW_SECONDS

    async def lead_back() -> bool:
        before, renewals = await state(name, "Ready"), told_of("is renewed")
        fast = await edit("Full", "Nodeless", "Core")
        # The last edit is followed no earlier than those before it, and says nothing new to the instance.
        services = ("Controllers", "Workloads")
        await fleet.resolve("a", server=server, secret="a", profile="Core", services=services)
        await fleet.put_secret("a", tenants["one"].controllers_secret())
        await eventually(lambda: told_of("is renewed") > renewals)
        after = await state(name, "Ready", lambda found: found["profile"] == "Core")
        assert not fast or after["pid"] == before["pid"]
        return fast

    async def lead_on(last: str) -> bool:
        before, engaged = await state(name, "Ready"), told_of(f"cluster {name}: engaged")
        fast = await edit("Full", before["profile"], last)
        after = await state(name, "Ready", lambda found: found["profile"] == last)
        assert after["pid"] != before["pid"]
        assert not fast or told_of(f"cluster {name}: engaged") == engaged + 1
        return fast

    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=server, profile="Core")
    # A machine that does other things too may need more tries to be that fast.
    assert await any_of(lead_back() for _ in range(5))
    assert await any_of(lead_on(last) for last in ("Nodeless", "Core", "Nodeless", "Core", "Nodeless"))


async def any_of(tries: Iterable[Awaitable[bool]]) -> bool:
    """Whether one of them succeeds; those after it are not tried."""
    for each in tries:
        if await each:
            return True
    return False
