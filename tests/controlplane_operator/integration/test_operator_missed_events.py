"""Deletions while the watches of an operator are interrupted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig
from tests.controlplane_operator.informing import informing

from .line import Line

pytestmark = pytest.mark.integration


async def test_objects_deleted_during_interruption_leave_stores(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    stores, line = Stores(), Line(config.server)
    proxied = replace(config, server=f"https://127.0.0.1:{line.port}")

    def known() -> set[str]:
        return {obj["metadata"]["name"] for obj in stores.classes}

    await line.lay()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(line.end)
        user = await stack.enter_async_context(Client(config, field_manager="kplane"))
        client = await stack.enter_async_context(Client(proxied, field_manager="kplane"))
        for name in ("missed", "kept"):
            await user.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": name}, "spec": {}})
        informers = await stack.enter_async_context(informing(client, stores))
        async with asyncio.timeout(60):
            await informers.wait_synced()
        # This write is in the store from its answer. Its deletion must remove it nevertheless.
        await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": "own"}, "spec": {}})
        assert known() >= {"missed", "kept", "own"}

        line.cut()
        for name in ("missed", "own"):
            await user.delete(CONTROL_PLANE_CLASSES, name)
        await line.lay()
        await eventually(known, lambda names: not {"missed", "own"} & names, timeout=120.0)
        assert "kept" in known()
        await user.delete(CONTROL_PLANE_CLASSES, "kept")
        await eventually(known, lambda names: "kept" not in names)
