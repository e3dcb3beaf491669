"""Held scheduling: a StatefulSet gets new scheduling only after pods of the API server run with this scheduling."""

from __future__ import annotations

import pytest

from kplane.workloads import Phase, Scheduling

from .conftest import server

pytestmark = pytest.mark.integration

TYPO, RIGHT = Scheduling(node_selector={"disk": "sdd"}), Scheduling(node_selector={"disk": "ssd"})
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


async def test_held_scheduling_keeps_nodes_and_applies_other_changes(cluster):
    namespace = await cluster.namespace("pods-held")
    name = f"{namespace}--store"

    async def only():
        return next(iter(await cluster.pods(namespace)), None)

    async with cluster.runtime() as runtime:
        assert not runtime.placed(name, None)
        # A new component has no former scheduling to keep.
        await runtime.apply(server(name, data=True, scheduling=RIGHT, scheduling_held=True))
        first = await cluster.pod(namespace)
        assert first["spec"]["nodeSelector"] == {"disk": "ssd"}
        await cluster.run_pod(first)
        await cluster.eventually(lambda: runtime.placed(name, RIGHT))
        await runtime.apply(server(name, data=True, scheduling=TYPO, scheduling_held=True))
        assert (runtime.placed(name, RIGHT), runtime.placed(name, TYPO)) == (False, False)
        assert runtime.settled(name), "nothing of it was changed"
        await runtime.apply(server(name, data=True, scheduling=RIGHT, scheduling_held=True))
        assert runtime.placed(name, RIGHT)
    # The next operator has no record of the held scheduling.
    async with cluster.runtime() as runtime:
        await runtime.apply(server(name, data=True, scheduling=TYPO, scheduling_held=True, env={"GOGC": "70"}))
        second = await cluster.eventually(
            only, lambda pod: pod is not None and pod["metadata"]["uid"] != first["metadata"]["uid"]
        )
    assert second["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert second["spec"]["containers"][0]["env"] == [{"name": "GOGC", "value": "70"}]


async def test_held_scheduling_is_the_last_written_if_a_watch_lags(cluster, lag):
    namespace = await cluster.namespace("pods-held-behind")
    name = f"{namespace}--store"
    async with cluster.runtime() as runtime:
        await runtime.apply(server(name, data=True, scheduling=TYPO))
        await cluster.phase(runtime, name, Phase.STARTING)
        lag(True)
        await runtime.apply(server(name, data=True, scheduling=RIGHT))
        await runtime.apply(server(name, data=True, scheduling=TYPO, scheduling_held=True))
        lag(False)

        async def selector():
            pods = await cluster.pods(namespace)
            return pods[0]["spec"]["nodeSelector"] if pods else None

        await cluster.eventually(selector, lambda found: found == {"disk": "ssd"})


async def test_unschedulable_pod_is_replaced_after_correction(cluster):
    """Kubernetes replaces the pod, because the StatefulSet has podManagementPolicy Parallel."""
    namespace = await cluster.namespace("pods-corrected")
    name = f"{namespace}--store"

    async def only():
        return next(iter(await cluster.pods(namespace)), None)

    async with cluster.runtime() as runtime:
        await runtime.apply(server(name, data=True, scheduling=TYPO))
        stuck_pod = await cluster.pod(namespace)
        await cluster.say(stuck_pod, phase="Pending", conditions=[UNSCHEDULABLE])
        state = await cluster.eventually(lambda: runtime.state(name), lambda state: "has no node" in state.message)
        assert state.unplaced
        await runtime.apply(server(name, data=True, scheduling=RIGHT))
        replacement = await cluster.eventually(
            only, lambda pod: pod is not None and pod["metadata"]["uid"] != stuck_pod["metadata"]["uid"]
        )
    assert replacement["spec"]["nodeSelector"] == {"disk": "ssd"}
