"""Control planes whose storage is measured, and control planes that are reconciled after a measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import Usage


def stored(name: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"},
        "spec": {"mode": "Virtual"},
        "status": {"clusterPath": name, "endpoint": f"https://{name}:6443", **status},
    }


class Keyspace:
    """Fake for an etcd in which each tenant has a megabyte."""

    async def size_in_use(self) -> int:
        return 0

    async def usage(self, prefix: str, *, share: float) -> Usage:
        return Usage(100, 1_000_000)


async def test_only_published_tenants_of_shared_etcd_are_measured() -> None:
    stores, queues = Stores(), Queues()
    adopted = stored("adopted")
    adopted["spec"]["endpointRef"] = {"name": "adopted"}
    for obj in (
        stored("acme"),
        stored("known", storage={"keys": 101, "bytes": 1_000_100}),
        stored("unclear", storage={"keys": "many"}),
        stored("odd", clusterPath="../odd"),
        stored("early", endpoint=None),
        stored("elsewhere", home={"mode": "Virtual", "slot": 0, "dataStore": "pool-b"}),
        stored("dedicated", home={"mode": "Dedicated", "slot": 1}),
        adopted,
    ):
        stores.control_planes.apply(obj)
    context: Any = SimpleNamespace(client=None, stores=stores, queues=queues, events=None)
    shared: Any = SimpleNamespace(keyspace=Keyspace())
    runtime: Any = None
    virtual = VirtualProvisioner(context, runtime=runtime, shared_etcd=shared, restorer=shared)
    await virtual._required().meter.look()
    measured = {
        name
        for name in ("acme", "known", "unclear", "odd", "early", "elsewhere", "dedicated", "adopted")
        if virtual.usage(f"uid-of-{name}")
    }
    assert measured == {"acme", "known", "unclear"}
    assert len(queues.control_planes) == 2
