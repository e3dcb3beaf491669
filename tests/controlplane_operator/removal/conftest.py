"""One run of the operator on a real management cluster; the API server of the control plane is a stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlane, ControlPlaneClass, DeletionPolicy, ResourceModel
from kplane.api.names import CONTROL_PLANE_LABEL, FINALIZER, controllers_secret_name, kubeconfig_secret_name
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
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import LABEL_SELECTORS, Stores
from kplane.data import Usage
from kplane.embedded.handle import Handle
from kplane.pki.authorities import TenantAuthorities
from kplane.provider import Client, ClusterConfig, NotFound, Resource, Result
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.errors import Forbidden
from kplane.workloads import ProcessRuntime

_GROUP = "controlplane.kplane.dev"
AUTHORITIES = "control-plane-authorities"


class Died(Exception):
    """The operator's end, at the worst moment."""


class Mortal(Client):
    """A client whose operator dies at each of its writes twice: before the API server hears of it, and after it did.

    What is said of a removal is another write at each of its steps.
    """

    deaths: set[tuple[str, str, str]] | None = None
    """Of which it has died already; None: it lives."""

    refused: frozenset[str] | set[str] = frozenset()
    """Names of what somebody's admission policy lets nobody write."""

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
    """Stands for what an API server keeps."""

    def __init__(self, *, kept: bool = True) -> None:
        self.kept = kept
        self.removed: list[str] = []
        """What was taken down, by name."""
        self.shut_out_of: list[str] = []
        """Who lost access, by uid."""
        self.released: list[str] = []
        """Whose data may be deleted by others, by name."""

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
    """Keeps what would have been posted."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.said: list[tuple[str, str]] = []

    @override
    def record(self, about: ResourceModel, *, reason: str, message: str, warning: bool = False) -> None:
        self.said.append((reason, message))


def no_home(control_plane: ControlPlane) -> Movable:
    raise AssertionError(f"control plane {control_plane.name} has no snapshots")


async def nothing_to_abandon(_: ControlPlane) -> None:
    """No control plane here is on its way to another home."""


class Operator:
    """What one run of the operator knows, which goes with it."""

    def __init__(self, client: Client, data: Data) -> None:
        self.events = events = Said(client)
        stores = Stores()
        self.context = OperatorContext(
            client=client,
            stores=stores,
            queues=Queues(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        self.namespaces = ManagementNamespaces(self.context)
        self.keys = TenantKeys(self.context)
        self.data = data
        claims = AddressClaims(self.context.stores, address=data.address)
        # Nothing runs here, and so no mcm either.
        runtime = ProcessRuntime(Path("/nonexistent"), programs=())
        self.removal = Removal(
            self.context,
            namespaces=self.namespaces,
            provisioner=lambda _: data,
            claims=claims,
            mcms=DedicatedMcms(runtime, identities=McmIdentities(client)),
            abandon=nothing_to_abandon,
            served=ServedRevisions(self.context, homes=no_home),
        )

    async def look(self, name: str) -> ControlPlane:
        """Read everything anew; raises NotFound where the control plane is gone."""
        selectors = {**LABEL_SELECTORS, SECRETS: CONTROL_PLANE_LABEL}
        for store in (*self.context.stores.watched(), self.context.stores.secrets):
            found = await self.context.client.list(store.resource, label_selector=selectors.get(store.resource))
            store.replace(found.items, resource_version=found.resource_version)
        return ControlPlane.model_validate(await self.context.client.get(CONTROL_PLANES, name))

    async def make(self, name: str) -> TenantAuthorities:
        """Do what is done for a control plane before its API server runs, and after."""
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
        """Take it down as far as one look at it gets; `chosen` is its class."""
        return await self.removal.remove(await self.look(name), chosen=chosen)

    def said(self, reason: str) -> list[str]:
        """Return the messages of its Events."""
        return [message for told, message in self.events.said if told == reason]


@pytest.fixture
async def client(api_server: Handle, namespaces_go_at_once: Any, unguarded: None) -> AsyncIterator[Mortal]:
    """A client of the administrator, who does here what the operator does: no policy tells them apart."""
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with Client(config, field_manager="kplane") as reader:

        async def waited_for(namespace: dict[str, Any]) -> bool:
            """Tell whether the control plane says that it waits for this: as it always does, of one that takes time."""
            try:
                found = await reader.get(CONTROL_PLANES, namespace["metadata"]["name"].removeprefix("kplane-cp-"))
            except NotFound:
                return True
            conditions = found.get("status", {}).get("conditions", ())
            return any(condition["reason"] in {"RemovingNamespace", "NamespaceDeleted"} for condition in conditions)

        async with namespaces_go_at_once(config, due=waited_for), Mortal(config, field_manager="kplane") as made:
            yield made


async def begin(
    client: Client, name: str, *, policy: str, spec: dict[str, Any] | None = None, **annotations: str
) -> str:
    """Create a control plane, with the finalizer and the status that are written down before anything is made."""
    named = {f"{_GROUP}/{key}": value for key, value in annotations.items()}
    metadata = {"name": name, "finalizers": [FINALIZER], "annotations": named}
    body = {"metadata": metadata, "spec": {"deletionPolicy": policy, **(spec or {})}}
    made = await client.create(CONTROL_PLANES, body)
    status = {"clusterPath": name, "deletionPolicy": policy}
    await client.patch(CONTROL_PLANES, name, {"status": status}, subresource="status")
    return str(made["metadata"]["uid"])


async def register(client: Client, name: str, *, uid: str, instance: bool = True, **status: Any) -> None:
    """Make a registration as it is while services run for the control plane with this uid, or may start to."""
    spec = {"controlPlaneRef": {"name": name}, "services": ["Controllers"]}
    await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
    running = {"instance": {"controlPlaneUID": uid}} if instance else {}
    body = {"status": {"ready": True, "controlPlaneUID": uid, **running, **status}}
    await client.patch(CONTROL_PLANE_REGISTRATIONS, name, body, subresource="status")


async def say(client: Client, registration: str, **status: Any) -> None:
    """Change the status of a registration; None takes a field away."""
    await client.patch(CONTROL_PLANE_REGISTRATIONS, registration, {"status": status}, subresource="status")


async def authorities(client: Client, name: str) -> dict[str, Any]:
    found = await client.get(SECRETS, AUTHORITIES, namespace=f"kplane-cp-{name}")
    return dict(found["data"])


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
    """Repeat `run` until it does not die; gives how often it did."""
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
