"""The Service of a component in pods: its addresses inside and outside the cluster."""

from __future__ import annotations

import contextlib

import pytest

from kplane.provider.client.resources import SERVICES
from kplane.workloads import Exposure, RuntimeFailure
from kplane.workloads.pods import Expose

pytestmark = pytest.mark.integration


async def test_reserve_raises_until_the_load_balancer_has_an_address(idle_cluster):
    namespace = await idle_cluster.namespace("pods-balancer")
    name = f"{namespace}--server"
    async with idle_cluster.runtime(expose=Expose.LOAD_BALANCER) as runtime:
        with pytest.raises(
            RuntimeFailure, match="Service pods-balancer/server has no address from a load balancer yet"
        ):
            await runtime.reserve(name, ports=["https"], exposed=Exposure())
        ingress = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
        await idle_cluster.client.patch(
            SERVICES, "server", {"status": ingress}, namespace=namespace, subresource="status"
        )

        async def external():
            return (await runtime.reserve(name, ports=["https"], exposed=Exposure())).external

        address = await idle_cluster.eventually(external)
        assert (address.host, dict(address.ports)) == ("203.0.113.7", {"https": 6443})


async def test_annotations_change_and_load_balancer_class_is_kept(idle_cluster):
    namespace = await idle_cluster.namespace("pods-annotated")
    name = f"{namespace}--server"

    async def reserve(runtime, **exposure):
        with contextlib.suppress(RuntimeFailure):  # no load balancer gives an address here
            await runtime.reserve(name, ports=["https"], exposed=Exposure(**exposure))
        return await idle_cluster.client.get(SERVICES, "server", namespace=namespace)

    async with idle_cluster.runtime(expose=Expose.LOAD_BALANCER) as runtime:
        service = await reserve(
            runtime, annotations={"a.example/x": "1", "b.example/y": "2"}, load_balancer_class="e/one"
        )
        assert service["spec"]["loadBalancerClass"] == "e/one"
        foreign_annotations = {"metadata": {"annotations": {"cloud.example/id": "7"}}}
        await idle_cluster.client.patch(SERVICES, "server", foreign_annotations, namespace=namespace)

        async def annotated(**exposure):
            annotations = (await reserve(runtime, **exposure))["metadata"]["annotations"]
            return {
                name: value for name, value in annotations.items() if not name.startswith("controlplane.kplane.dev/")
            }

        desired = {"annotations": {"a.example/x": "3"}, "load_balancer_class": "e/other"}
        expected = {"a.example/x": "3", "cloud.example/id": "7"}
        await idle_cluster.eventually(lambda: annotated(**desired), lambda found: found == expected)
        await idle_cluster.eventually(annotated, lambda found: found == {"cloud.example/id": "7"})
        assert (await reserve(runtime))["spec"]["loadBalancerClass"] == "e/one"


async def test_node_port_is_the_external_port(idle_cluster):
    namespace = await idle_cluster.namespace("pods-node-port")
    async with idle_cluster.runtime(expose=Expose.NODE_PORT, external_host="nodes.example") as runtime:
        external = (await runtime.reserve(f"{namespace}--server", ports=["https"], exposed=Exposure())).external
        service = await idle_cluster.client.get(SERVICES, "server", namespace=namespace)
        assert (external.host, dict(external.ports)) == (
            "nodes.example",
            {"https": service["spec"]["ports"][0]["nodePort"]},
        )
        address = await runtime.reserve(f"{namespace}--store", ports=["client"])
        assert address.external is None
        store = await idle_cluster.client.get(SERVICES, "store", namespace=namespace)
        assert store["spec"]["type"] == "ClusterIP"
