"""How old what is known of the management cluster may be before the operator says that it is not ready."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from kplane.controlplane_operator.watch import feeds as resync
from kplane.controlplane_operator.watch.event_routing import Stores
from kplane.controlplane_operator.watch.feeds import Resync
from kplane.provider import Client, Unreachable
from kplane.provider.client.client import ObjectList


class Server:
    """An API server of nothing, which can be away."""

    def __init__(self) -> None:
        self.away = False

    async def list(self, *_: Any, **__: Any) -> ObjectList:
        if self.away:
            raise Unreachable("nobody there", kind="connect")
        return ObjectList([], resource_version="1")


async def test_a_list_is_relied_on_for_five_minutes(eventually: Any) -> None:
    server, now = Server(), 1000.0
    made = Resync(cast("Client", server), stores=Stores(), label_selectors={}, clock=lambda: now)
    assert made.problem() == "the management cluster was not listed yet"
    task = asyncio.create_task(made.run())
    await made.synced.wait()
    # Longer than it takes until the next list, which may fail once.
    assert 2 * 1.2 * resync._PERIOD_SECONDS < 299
    now += 299
    assert made.problem() is None
    server.away = True
    made.ask()
    now += 2
    problem = made.problem() or ""
    assert problem.startswith("the management cluster could not be listed since 20")
    assert "301 s ago" in problem
    now += 7200
    assert "7501 s ago" in (made.problem() or "")
    server.away = False
    await eventually(made.problem, lambda told: told is None)
    task.cancel()
