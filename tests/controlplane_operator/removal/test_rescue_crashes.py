"""A user deletes a namespace, and the operator crashes at each of its writes: the keys are never lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlane
from kplane.api.names import saved_keys_name
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes
from kplane.controlplane_operator.controlplanes.migration.following import Copies
from kplane.controlplane_operator.controlplanes.migration.migrator import Migrator
from kplane.controlplane_operator.controlplanes.provisioners import Provisioners
from kplane.controlplane_operator.controlplanes.reconciler import ControlPlaneReconciler
from kplane.controlplane_operator.controlplanes.served_revisions import ServedRevisions
from kplane.controlplane_operator.controlplanes.service_monitors import ServiceMonitors
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.hibernation.room import Limits, Room
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.provider import NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import ProcessRuntime

from .conftest import AUTHORITIES, Data, Mortal, Operator, authorities, begin, dying_at_every_write, remove_all

pytestmark = pytest.mark.integration


class Keyed(Data):
    """Data with keys, and with an API server that never gets ready."""

    def __init__(self, operator_of: Any) -> None:
        super().__init__(kept=False)
        self.operator_of = operator_of
        self.held: str | None = None

    @override
    async def volume(self, control_plane: ControlPlane) -> str | None:
        return self.held

    @override
    async def ensure(self, control_plane: ControlPlane) -> Provision:
        await self.operator_of().keys.authorities(control_plane, has_data=self.has_data)
        raise ConditionError(Reason.PROVISIONING, "it starts for ever")

    def let_go(self, uid: str) -> None:
        pass


class Run:
    """Consecutive runs of the operator for a control plane."""

    def __init__(self, client: Mortal, name: str) -> None:
        self.client = client
        self.name = name
        self.data = Keyed(lambda: self.operator)
        self.operator = Operator(client, self.data)

    async def reconcile(self) -> None:
        """Reconcile the control plane once, with an operator that has just started."""
        self.operator = Operator(self.client, self.data)
        context = self.operator.context
        data_stores: Any = SimpleNamespace(of=lambda _: self.data, check=lambda _: None, let_go=lambda _: None)
        provisioners: Any = Provisioners(data_stores=data_stores, dedicated=self.data, adopted=self.data)  # type: ignore[arg-type]
        planner: Any = None  # unused: the control plane does not migrate
        claims = AddressClaims(context.stores, address=self.data.address)
        reconciler = ControlPlaneReconciler(
            context,
            probes=CredentialProbes(context, use=HostNameUse(context)),
            provisioners=provisioners,
            namespaces=self.operator.namespaces,
            claims=claims,
            clusters=ClusterClaims(context.stores),
            switch=EndpointSwitch(context.stores, triggers=context.triggers),
            removal=self.operator.removal,
            served=ServedRevisions(context, homes=provisioners.home),
            runtime=ProcessRuntime(Path("/nonexistent"), programs=()),
            monitors=ServiceMonitors(context, settings=None),
            room=Room(context, limits=Limits(), at_once=1),
            use=HostNameUse(context),
            migrator=Migrator(context, homes=provisioners.home, planner=planner, copies=Copies(), claim=claims.take),
        )
        await self.operator.look(self.name)
        await reconciler.reconcile(("", self.name))

    async def look(self) -> ControlPlane:
        return await self.operator.look(self.name)


async def secret(client: Mortal, name: str, *, namespace: str) -> dict[str, Any] | None:
    try:
        obj: dict[str, Any] = await client.get(SECRETS, name, namespace=namespace)
    except NotFound:
        return None
    return obj


async def test_keys_survive_an_operator_crash_at_every_write(client: Mortal) -> None:
    name, namespace = "rescued", "kplane-cp-rescued"
    uid = await begin(client, name, policy="Destroy")
    run = Run(client, name)
    await run.reconcile()
    keys = await authorities(client, name)
    former_uid = (await run.look()).status.namespace_uid
    assert former_uid == (await client.get(NAMESPACES, namespace))["metadata"]["uid"]
    await client.patch(CONTROL_PLANES, name, {"status": {"endpoint": "https://127.0.0.1:9"}}, subresource="status")
    await client.delete(NAMESPACES, namespace)

    async def repair() -> None:
        try:
            while True:
                await run.reconcile()
                status = (await run.look()).status
                restored = await secret(client, AUTHORITIES, namespace=namespace)
                saved = await secret(client, saved_keys_name(uid), namespace="kplane-system")
                if status.namespace_uid != former_uid and restored is not None and saved is None:
                    return
                await asyncio.sleep(0.05)
        finally:
            client.deaths = None
            places = ((AUTHORITIES, namespace), (saved_keys_name(uid), "kplane-system"))
            secrets = [await secret(client, item, namespace=location) for item, location in places]
            assert any(item is not None and item.get("data") == keys for item in secrets)

    # Two crashes for each write: the saved keys, the protection of the keys, a namespace, a status, the keys,
    # and the deletion of the saved keys.
    assert await dying_at_every_write(client, repair) == 12
    assert await authorities(client, name) == keys
    status = (await run.look()).status
    assert status.namespace_uid == (await client.get(NAMESPACES, namespace))["metadata"]["uid"]
    await client.delete(CONTROL_PLANES, name)
    await remove_all(Operator(client, run.data), name)


async def test_keys_stay_in_deleted_namespace_while_a_volume_holds_data(client: Mortal) -> None:
    name, namespace = "weighty", "kplane-cp-weighty"
    uid = await begin(client, name, policy="Destroy")
    run = Run(client, name)
    await run.reconcile()
    keys = await authorities(client, name)
    run.data.held = "PersistentVolumeClaim kplane-cp-weighty/data-etcd-0"
    await client.delete(NAMESPACES, namespace)
    await run.reconcile()
    [ready] = [condition for condition in (await run.look()).status.conditions if condition.type == "Ready"]
    assert (ready.status, ready.reason) == ("False", "NamespaceDeleted")
    assert "PersistentVolumeClaim kplane-cp-weighty/data-etcd-0 holds the data" in ready.message
    assert "remove finalizer controlplane.kplane.dev/protected from the claim" in ready.message
    assert await authorities(client, name) == keys
    run.data.held = None
    await client.delete(CONTROL_PLANES, name)
    await remove_all(Operator(client, run.data), name)
    assert await secret(client, saved_keys_name(uid), namespace="kplane-system") is None
