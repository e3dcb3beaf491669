"""Stop and delete of components in pods. A pod of the next workload never runs beside a pod of the former workload."""

from __future__ import annotations

import pytest

from kplane.provider import NotFound
from kplane.provider.client.resources import DEPLOYMENTS, SERVICES
from kplane.workloads import Phase, RuntimeFailure

from .conftest import server

pytestmark = pytest.mark.integration


async def test_stop_ignores_an_evicted_pod(cluster):
    namespace = await cluster.namespace("pods-evicted")
    name = f"{namespace}--server"
    async with cluster.runtime() as runtime:
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)
        await cluster.say(pod, phase="Failed", reason="Evicted")
        await cluster.pod(namespace, but=(pod["metadata"]["name"],))
        await runtime.stop(name)
        assert [remaining["status"]["phase"] for remaining in await cluster.pods(namespace)] == ["Failed"]


async def test_delete_raises_while_a_pod_remains_and_can_be_repeated(cluster):
    namespace = await cluster.namespace("pods-slow")
    name = f"{namespace}--server"
    async with cluster.runtime(end_seconds=1.0) as runtime:
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)
        await cluster.hold(pod)
        with pytest.raises(RuntimeFailure, match=f"has not ended in namespace {namespace} yet; pods: server-"):
            await runtime.delete(name)
        await cluster.client.get(SERVICES, "server", namespace=namespace)
        await cluster.hold(pod, held=False)

        async def deleted():
            await runtime.delete(name)
            return True

        await cluster.eventually(deleted)
        with pytest.raises(NotFound):
            await cluster.client.get(SERVICES, "server", namespace=namespace)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("end", ["stop", "delete"])
async def test_stop_and_delete_raise_for_a_pod_unseen_by_a_late_watch(cluster, lag, end, kind):
    namespace = await cluster.namespace(f"pods-lag-{end}-{kind.lower()}")
    name = f"{namespace}--server"
    async with cluster.runtime(end_seconds=1.0) as runtime:
        lag(True)
        await runtime.reserve(name, ports=["https"])
        await runtime.apply(server(name, single=kind == "StatefulSet"))
        pod = await cluster.pod(namespace)
        await cluster.hold(pod)
        # The runtime has seen neither the workload nor its pod.
        assert runtime.state(name).phase is Phase.ABSENT
        with pytest.raises(RuntimeFailure, match=r"has not ended in namespace .* yet; pods: server-"):
            await getattr(runtime, end)(name)
        await cluster.client.get(SERVICES, "server", namespace=namespace)
        await cluster.hold(pod, held=False)

        async def ended():
            await getattr(runtime, end)(name)
            return await cluster.pods(namespace)

        await cluster.eventually(ended, lambda pods: pods == [])


async def test_delete_returns_before_a_late_watch_sees_the_end(cluster, lag):
    namespace = await cluster.namespace("pods-lag-ended")
    name = f"{namespace}--server"
    async with cluster.runtime(end_seconds=1.0) as runtime:
        await runtime.apply(server(name))
        await cluster.run_pod(await cluster.pod(namespace))
        await cluster.phase(runtime, name, Phase.READY)
        lag(True)

        async def deleted():
            await runtime.delete(name)
            return True

        await cluster.eventually(deleted)
        assert runtime.state(name).phase is Phase.READY


@pytest.mark.parametrize("seen", [True, False])
async def test_apply_raises_while_a_pod_of_the_former_workload_remains(cluster, lag, seen):
    """Another client deletes the Deployment while its pod remains. The runtime may have seen neither object."""
    namespace = await cluster.namespace(f"pods-successor-{seen}".lower())
    name = f"{namespace}--server"
    async with cluster.runtime(end_seconds=1.0) as runtime:
        lag(not seen)
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)
        await cluster.hold(pod)
        if seen:
            # The runtime sees the workload, and does not see its deletion.
            await cluster.phase(runtime, name, Phase.STARTING)
            lag(True)
        await cluster.client.delete(DEPLOYMENTS, "server", namespace=namespace)
        with pytest.raises(RuntimeFailure, match="has not ended"):
            await runtime.delete(name)
        changed = server(name, env={"GOGC": "100"})
        for _ in range(2):
            with pytest.raises(RuntimeFailure, match=r"pods of its former workload have not ended .* yet: server-"):
                await runtime.apply(changed)
        assert [remaining["metadata"]["uid"] for remaining in await cluster.pods(namespace)] == [pod["metadata"]["uid"]]
        await cluster.hold(pod, held=False)

        async def applied():
            await runtime.delete(name)
            await runtime.apply(changed)
            return True

        await cluster.eventually(applied)
        await cluster.pod(namespace, but=(pod["metadata"]["name"],))


async def test_apply_raises_while_the_former_workload_is_being_deleted(cluster):
    namespace = await cluster.namespace("pods-dying")
    name = f"{namespace}--server"
    async with cluster.runtime(end_seconds=1.0) as runtime:
        await runtime.apply(server(name))
        pod = await cluster.pod(namespace)
        await cluster.hold(pod)
        with pytest.raises(RuntimeFailure, match="has not ended"):
            await runtime.delete(name)
        with pytest.raises(RuntimeFailure, match="its former Deployment in namespace pods-dying is not gone yet"):
            await runtime.apply(server(name))
        await cluster.hold(pod, held=False)

        async def applied():
            await runtime.apply(server(name))
            return True

        await cluster.eventually(applied)
        await cluster.pod(namespace, but=(pod["metadata"]["name"],))
