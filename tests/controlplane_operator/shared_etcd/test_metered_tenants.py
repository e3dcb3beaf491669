"""Control planes whose storage is measured, and control planes that are reconciled after a measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
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

    def __init__(self, *, keys: int = 100, identities: dict[str, str] | None = None) -> None:
        self._keys = keys
        self._identities = identities or {}

    async def identities(self) -> dict[str, str]:
        return self._identities

    async def usage(self, prefix: str, *, share: float) -> Usage:
        return Usage(self._keys, 10_000 * self._keys)


def provisioner(stores: Stores, triggers: Triggers, keyspace: Keyspace) -> VirtualProvisioner:
    context: Any = SimpleNamespace(client=None, stores=stores, triggers=triggers, events=None)
    shared: Any = SimpleNamespace(keyspace=keyspace)
    runtime: Any = None
    return VirtualProvisioner(context, runtime=runtime, shared_etcd=shared, restorer=shared)


ASLEEP = {
    "hibernation": {"since": "2026-11-26T01:00:00Z", "reason": "Idle"},
    "storage": {"keys": 100, "bytes": 1_000_000},
    "dataIdentity": "5f0c",
}


def ready(reason: str) -> list[dict[str, str]]:
    times = {"lastTransitionTime": "2026-11-26T01:00:00Z", "message": ""}
    return [{"type": "Ready", "status": "False", "reason": reason, **times}]


@pytest.mark.parametrize(
    ("status", "identity", "queued"),
    [
        ({}, "5f0c", False),
        ({}, None, True),
        ({}, "of an older backup", True),
        ({"hibernation": None}, None, True),
        ({"conditions": ready("DataLost")}, None, False),
        ({"conditions": ready("Hibernated")}, None, True),
        # An earlier version published the control plane.
        ({"dataIdentity": None}, None, False),
    ],
)
async def test_control_plane_without_its_identity_is_reconciled_within_a_look(
    status: dict[str, Any], identity: str | None, queued: bool
) -> None:
    stores, triggers = Stores(), Triggers()
    stores.control_planes.apply(stored("acme", **{**ASLEEP, **status}))
    keyspace = Keyspace(identities={"/clusters/acme/": "5f0c"})
    meter = provisioner(stores, triggers, keyspace)._required().meter
    await meter.look()
    assert len(triggers.control_planes.channel.waiting) == 0
    keyspace._identities = {"/clusters/acme/": identity} if identity is not None else {}
    await meter.look()
    assert len(triggers.control_planes.channel.waiting) == queued


@pytest.mark.parametrize(("reason", "queued"), [("Hibernated", True), ("DataLost", False)])
async def test_control_plane_without_keys_is_reconciled(reason: str, queued: bool) -> None:
    stores, triggers = Stores(), Triggers()
    status = {**ASLEEP, "storage": {"keys": 0, "bytes": 0}, "conditions": ready(reason)}
    stores.control_planes.apply(stored("acme", **status))
    keyspace = Keyspace(keys=0, identities={"/clusters/acme/": "5f0c"})
    await provisioner(stores, triggers, keyspace)._required().meter.look()
    assert len(triggers.control_planes.channel.waiting) == queued


async def test_only_published_tenants_of_shared_etcd_are_measured() -> None:
    stores, triggers = Stores(), Triggers()
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
    virtual = provisioner(stores, triggers, Keyspace())
    await virtual._required().meter.look()
    measured = {
        name
        for name in ("acme", "known", "unclear", "odd", "early", "elsewhere", "dedicated", "adopted")
        if virtual.usage(f"uid-of-{name}")
    }
    assert measured == {"acme", "known", "unclear"}
    assert len(triggers.control_planes.channel.waiting) == 2
