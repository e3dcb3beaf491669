"""A run of the operator on a real management cluster. A fake stands in for the API server of the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlane, ControlPlaneClass, DeletionPolicy, ResourceModel
from kplane.api.names import FINALIZER, controllers_secret_name, kubeconfig_secret_name
from kplane.controlplane_operator.backends.base import Movable, Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.deletion import Removal
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.served_revisions import ServedRevisions
from kplane.controlplane_operator.credentials.secrets import write_secret
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.addresses import etcd_address
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.data import Usage
from kplane.embedded.handle import Handle
from kplane.pki.authorities import TenantAuthorities
from kplane.provider import Cache, Client, ClusterConfig, NotFound, Resource, Result
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.errors import Forbidden
from kplane.workloads import ProcessRuntime
from tests.controlplane_operator.informing import list_again, store_writes

_GROUP = "controlplane.kplane.dev"
AUTHORITIES = "control-plane-authorities"


class Died(Exception):
    """Crash of the operator at a write."""


class Mortal(Client):
    """Client that crashes its operator twice at each write: before and after the request reaches the API server.

    Each step of a removal counts as a separate write of the status.
    """

    deaths: set[tuple[str, str, str]] | None = None
    """Crashes so far: time, verb and name of each write. None: the client never crashes."""

    refused: frozenset[str] | set[str] = frozenset()
    """Names of objects that an admission policy does not allow to write."""

    async def _write_or_die(self, what: str, name: str, write: Callable[[], Any]) -> Any:
        if name in self.refused:
            raise Forbidden(403, "Forbidden", "a policy of somebody's says no")
        self._die("before", what, name)
        try:
            return await write()
        finally:
            self._die("after", what, name)

    def _die(self, when: str, what: str, name: str) -> None:
        death = when, what, name
        if self.deaths is not None and death not in self.deaths:
            self.deaths.add(death)
            raise Died

    @override
    async def create(self, resource: Resource, body: dict[str, Any], **options: Any) -> Any:
        create = super().create
        return await self._write_or_die("create", body["metadata"]["name"], lambda: create(resource, body, **options))

    @override
    async def patch(self, resource: Resource, name: str, body: dict[str, Any], **options: Any) -> Any:
        patch = super().patch
        return await self._write_or_die("patch", name, lambda: patch(resource, name, body, **options))

    @override
    async def apply(self, resource: Resource, body: dict[str, Any], **options: Any) -> Any:
        apply = super().apply
        conditions = body.get("status", {}).get("conditions", ())
        steps = [condition["reason"] for condition in conditions if condition["type"] == "Deleting"]
        name = " ".join([body["metadata"]["name"], *steps])
        return await self._write_or_die("apply", name, lambda: apply(resource, body, **options))

    @override
    async def delete(self, resource: Resource, name: str, **options: Any) -> Any:
        delete = super().delete
        return await self._write_or_die("delete", name, lambda: delete(resource, name, **options))


class Data:
    """Fake for the data of an API server."""

    def __init__(self, *, kept: bool = True) -> None:
        self.kept = kept
        self.removed: list[str] = []
        """Names of control planes whose components were shut down."""
        self.shut_out_of: list[str] = []
        """UIDs of control planes that lost access."""
        self.released: list[str] = []
        """Names of control planes whose data are no longer protected against deletion."""

    def address(self, control_plane: ControlPlane) -> str | None:
        return etcd_address(control_plane.cluster_path)

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        raise AssertionError("a removal makes nothing")

    async def has_data(self, control_plane: ControlPlane) -> bool:
        return self.kept

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        self.shut_out_of.append(former)

    def usage(self, uid: str) -> Usage | None:
        return None

    async def volume(self, control_plane: ControlPlane) -> str | None:
        return None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        self.released.append(control_plane.name)

    async def shut_down(self, control_plane: ControlPlane) -> None:
        self.removed.append(control_plane.name)

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        if policy is DeletionPolicy.DESTROY:
            self.kept = False


class Said(Events):
    """Events that are kept in memory instead of posted."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.said: list[tuple[str, str]] = []

    @override
    def record(self, about: ResourceModel, *, reason: str, message: str, warning: bool = False) -> None:
        self.said.append((reason, message))


def no_home(control_plane: ControlPlane) -> Movable:
    raise AssertionError(f"control plane {control_plane.name} has no snapshots")


async def nothing_to_abandon(_: ControlPlane) -> None:
    """No control plane of these tests migrates."""


class Operator:
    """State of a run of the operator, which is lost with the run."""

    def __init__(self, client: Client, data: Data) -> None:
        self.events = events = Said(client)
        stores = Stores()
        self.context = OperatorContext(
            client=client,
            stores=stores,
            triggers=Triggers(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, Cache(client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        store_writes(client, stores)
        self.namespaces = ManagementNamespaces(self.context)
        self.keys = TenantKeys(self.context)
        self.data = data
        claims = AddressClaims(self.context.stores, address=data.address)
        # No process runs in these tests, and so no mcm either.
        runtime = ProcessRuntime(Path("/nonexistent"), programs=())
        self.removal = Removal(
            self.context,
            namespaces=self.namespaces,
            provisioner=lambda _: data,
            claims=claims,
            mcms=DedicatedMcms(runtime, identities=McmIdentities(client, Cache(client))),
            abandon=nothing_to_abandon,
            served=ServedRevisions(self.context, homes=no_home),
        )

    async def look(self, name: str) -> ControlPlane:
        """Refresh all stores and return the control plane; raise NotFound if it is gone."""
        stores = self.context.stores
        await list_again(self.context.client, (*stores.cached(), stores.secrets))
        return ControlPlane.model_validate(await self.context.client.get(CONTROL_PLANES, name))

    async def make(self, name: str) -> TenantAuthorities:
        """Create the objects that the operator creates before and after the start of the API server."""
        control_plane = await self.look(name)
        await self.namespaces.check(control_plane)
        await self.namespaces.ensure(control_plane, take_over=self.data.take_over, volume=self.data.volume)

        async def has_data(_: ControlPlane) -> bool:
            return False

        authorities = await self.keys.authorities(control_plane, has_data=has_data)
        for secret in (kubeconfig_secret_name(name), controllers_secret_name(name)):
            await write_secret(self.context, control_plane, name=secret, data={"kubeconfig": b"secret"})
        return authorities

    async def remove(self, name: str, *, chosen: ControlPlaneClass | None = None) -> Result | None:
        """Reconcile the removal of the control plane once; `chosen` is its class."""
        return await self.removal.remove(await self.look(name), chosen=chosen)

    def said(self, reason: str) -> list[str]:
        """Return the messages of the Events with this reason."""
        return [message for event_reason, message in self.events.said if event_reason == reason]


@pytest.fixture
async def client(api_server: Handle, namespaces_go_at_once: Any, unguarded: None) -> AsyncIterator[Mortal]:
    """Client of the administrator, who acts as the operator here: no admission policy distinguishes the two."""
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with Client(config, field_manager="kplane") as reader:

        async def waited_for(namespace: dict[str, Any]) -> bool:
            """Return whether the control plane reports that it waits for this namespace, or is already gone."""
            try:
                control_plane = await reader.get(
                    CONTROL_PLANES, namespace["metadata"]["name"].removeprefix("kplane-cp-")
                )
            except NotFound:
                return True
            conditions = control_plane.get("status", {}).get("conditions", ())
            return any(condition["reason"] in {"RemovingNamespace", "NamespaceDeleted"} for condition in conditions)

        async with namespaces_go_at_once(config, due=waited_for), Mortal(config, field_manager="kplane") as mortal:
            yield mortal


async def begin(
    client: Client, name: str, *, policy: str, spec: dict[str, Any] | None = None, **annotations: str
) -> str:
    """Create a control plane with the finalizer and the status that precede all other objects."""
    prefixed = {f"{_GROUP}/{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "finalizers": [FINALIZER], "annotations": prefixed}
    body = {"metadata": metadata, "spec": {"deletionPolicy": policy, **(spec or {})}}
    control_plane = await client.create(CONTROL_PLANES, body)
    status = {"clusterPath": name, "deletionPolicy": policy}
    await client.patch(CONTROL_PLANES, name, {"status": status}, subresource="status")
    return str(control_plane["metadata"]["uid"])


async def register(client: Client, name: str, *, uid: str, instance: bool = True, **status: Any) -> None:
    """Create a registration whose services run for the control plane with this uid, or may start to."""
    spec = {"controlPlaneRef": {"name": name}, "services": ["Controllers"]}
    await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
    running = {"instance": {"controlPlaneUID": uid}} if instance else {}
    body = {"status": {"ready": True, "controlPlaneUID": uid, **running, **status}}
    await client.patch(CONTROL_PLANE_REGISTRATIONS, name, body, subresource="status")


async def say(client: Client, registration: str, **status: Any) -> None:
    """Change the status of a registration; None removes a field."""
    await client.patch(CONTROL_PLANE_REGISTRATIONS, registration, {"status": status}, subresource="status")


async def authorities(client: Client, name: str) -> dict[str, Any]:
    secret = await client.get(SECRETS, AUTHORITIES, namespace=f"kplane-cp-{name}")
    return dict(secret["data"])


async def record_of(client: Client, name: str) -> dict[str, Any]:
    return dict((await client.get(NAMESPACES, f"kplane-cp-{name}"))["metadata"])


async def token(client: Client, name: str) -> str:
    return str((await record_of(client, name))["annotations"][f"{_GROUP}/adoption-token"])


async def gone(client: Client, name: str) -> bool:
    try:
        await client.get(CONTROL_PLANES, name)
    except NotFound:
        return True
    return False


async def remove_all(operator: Operator, name: str) -> None:
    while not await gone(operator.context.client, name):
        await operator.remove(name)
    with pytest.raises(NotFound):
        await operator.context.client.get(NAMESPACES, f"kplane-cp-{name}")


async def dying_at_every_write(client: Mortal, run: Callable[[], Any]) -> int:
    """Repeat `run` until it completes; return the number of crashes."""
    deaths: set[tuple[str, str, str]] = set()
    while True:
        client.deaths = deaths
        try:
            await run()
        except Died:
            continue
        else:
            return len(deaths)
        finally:
            client.deaths = None
