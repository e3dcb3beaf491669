"""Two mcm whose selectors overlap: one runs the instance and writes the condition, the other one leaves it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
_PATIENCE = 120.0


async def test_running_does_not_change_while_two_mcm_follow_one_registration(
    mcm_of: Any, api_server: Any, fleet: Any, tenants: Any, eventually: Eventually
) -> None:
    tenant = tenants["one"]
    first, second = (mcm_of(api_server.mcm_kubeconfig, quick=True) for _ in range(2))
    name = await fleet.register("shared", tenant.controllers_secret(), server=tenant.server)

    async def runs() -> bool:
        return (await fleet.condition("shared")).get("status") == "True"

    first.start()
    await eventually(runs, timeout=_PATIENCE)
    pids = first.instances()
    second.start()

    def is_held() -> bool:
        return "another mcm runs the instance" in second.log.read_text()

    await eventually(is_held, timeout=_PATIENCE)
    await eventually(runs, timeout=_PATIENCE)
    said = await fleet.condition("shared")
    # Each mcm looks at the Lease once a second: time enough for many changes.
    for _ in range(40):
        await asyncio.sleep(0.25)
        assert await fleet.condition("shared") == said
    assert first.instances() == pids
    assert second.clusters()[name]["pid"] is None
    assert second.log.read_text().count("another mcm runs the instance") == 1
    # One that ends without having run anything says nothing.
    second.end()
    assert await fleet.condition("shared") == said
