"""Changes before the start of a watch are observed once the watch runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kplane.controlplane_operator.watch.feeds import KopfFeeds, Resync

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.watch.stores import LABEL_SELECTORS, Stores
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig

pytestmark = pytest.mark.integration


async def test_deletion_between_list_and_watch_is_observed(api_server: Handle, eventually: Callable[..., Any]) -> None:
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    stores = Stores()

    def known() -> set[str]:
        return {obj["metadata"]["name"] for obj in stores.classes}

    async with Client(config, field_manager="kplane") as client, asyncio.TaskGroup() as group:
        for name in ("missed", "kept"):
            await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": name}, "spec": {}})
        resync = Resync(client, stores=stores, label_selectors=LABEL_SELECTORS)
        tasks = [group.create_task(resync.run())]
        await resync.synced.wait()
        assert known() >= {"missed", "kept"}
        await client.delete(CONTROL_PLANE_CLASSES, "missed")

        watching = KopfFeeds(
            lambda: config,
            stores=stores.fed_by_kopf(),
            label_selectors=LABEL_SELECTORS,
            listed=resync.ask,
        )
        tasks.append(group.create_task(watching.run()))
        await eventually(known, lambda names: "missed" not in names)
        assert "kept" in known()
        await client.delete(CONTROL_PLANE_CLASSES, "kept")
        await eventually(known, lambda names: "kept" not in names)
        for task in tasks:
            task.cancel()
