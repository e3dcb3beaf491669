"""An operator that dies between any two writes loses no keys, and the next one goes on from there.

The management cluster is real, with its garbage collector; the API server of the control plane is a stand-in.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from typing_extensions import override

from api import ControlPlane, DeletionPolicy
from api.names import FINALIZER, controllers_secret_name, kubeconfig_secret_name
from controlplane_operator.access import Access
from controlplane_operator.claims import Claims
from controlplane_operator.credentials import TenantAuthorities
from controlplane_operator.events import Events
from controlplane_operator.fanout import LABEL_SELECTORS, Queues, Stores
from controlplane_operator.keys import TenantKeys
from controlplane_operator.kinds import CONTROL_PLANES
from controlplane_operator.management import Management
from controlplane_operator.namespaces import ManagementNamespaces
from controlplane_operator.provision import Provision
from controlplane_operator.removal import Removal
from controlplane_operator.secrets import write_secret
from controlplane_operator.status import StatusWriter
from controlplane_operator.trouble import Trouble
from embedded.handle import Handle
from provider import NAMESPACES, SECRETS, Client, ClusterConfig, NotFound, Resource

pytestmark = pytest.mark.integration

_GROUP = "controlplane.kplane.dev"
_AUTHORITIES = "control-plane-authorities"


class Died(Exception):
    """The operator's end, at the worst moment."""


class Mortal(Client):
    """A client whose operator dies at each of its writes twice: before the API server hears of it, and after it did."""

    deaths: set[tuple[str, str, str]] | None = None
    """Of which it has died already; None: it lives."""

    async def _write(self, what: str, name: str, write: Callable[[], Any]) -> Any:
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
        return await self._write("create", body["metadata"]["name"], lambda: create(resource, body, **options))

    @override
    async def patch(self, resource: Resource, name: str, body: dict[str, Any], **options: Any) -> Any:
        patch = super().patch
        return await self._write("patch", name, lambda: patch(resource, name, body, **options))

    @override
    async def apply(self, resource: Resource, body: dict[str, Any], **options: Any) -> Any:
        apply = super().apply
        return await self._write("apply", body["metadata"]["name"], lambda: apply(resource, body, **options))

    @override
    async def delete(self, resource: Resource, name: str, **options: Any) -> Any:
        delete = super().delete
        return await self._write("delete", name, lambda: delete(resource, name, **options))


class Data:
    """Stands for what an API server keeps."""

    def __init__(self) -> None:
        self.kept = True

    def realm(self, control_plane: ControlPlane) -> str | None:
        return "shared etcd"

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        raise NotImplementedError

    async def remove(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        if policy is DeletionPolicy.DESTROY:
            self.kept = False


class Operator:
    """What one run of the operator knows, which goes with it."""

    def __init__(self, client: Client, data: Data) -> None:
        events = Events(client)
        self.management = Management(
            client=client,
            stores=Stores(),
            queues=Queues(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, service_account="mcm", service_account_namespace="kplane-system"),
        )
        self.namespaces = ManagementNamespaces(self.management)
        self.keys = TenantKeys(self.management)
        claims = Claims(self.management.stores, realm=data.realm)
        self.removal = Removal(self.management, namespaces=self.namespaces, provisioner=lambda _: data, claims=claims)

    async def look(self, name: str) -> ControlPlane:
        """Read everything anew; raises NotFound where the control plane is gone."""
        for store in self.management.stores.watched():
            found = await self.management.client.list(
                store.resource, label_selector=LABEL_SELECTORS.get(store.resource)
            )
            store.replace(found.items, resource_version=found.resource_version)
        return ControlPlane.model_validate(await self.management.client.get(CONTROL_PLANES, name))

    async def make(self, name: str) -> TenantAuthorities:
        """Do what is done for a control plane before its API server runs, and after."""
        control_plane = await self.look(name)
        await self.namespaces.check(control_plane)
        await self.namespaces.ensure(control_plane)

        async def has_data() -> bool:
            return False

        authorities = await self.keys.authorities(control_plane, has_data=has_data)
        for secret in (kubeconfig_secret_name(name), controllers_secret_name(name)):
            await write_secret(self.management, control_plane, name=secret, data={"kubeconfig": b"secret"})
        return authorities

    async def remove(self, name: str) -> None:
        """Take it down as far as one look at it gets."""
        await self.removal.remove(await self.look(name), chosen=None)


@pytest.fixture
async def client(api_server: Handle) -> AsyncIterator[Mortal]:
    async with Mortal(ClusterConfig.load(api_server.admin_kubeconfig)) as made:
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


async def authorities(client: Client, name: str) -> dict[str, Any]:
    found = await client.get(SECRETS, _AUTHORITIES, namespace=f"kplane-cp-{name}")
    return dict(found["data"])


async def gone(client: Client, name: str) -> bool:
    try:
        await client.get(CONTROL_PLANES, name)
    except NotFound:
        return True
    return False


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
async def test_retain_and_adoption_survive_death_at_every_write(client: Mortal, propagation: str) -> None:
    name, data = f"mortal-{propagation.lower()}", Data()
    uid = await begin(client, name, policy="Retain")
    made = await Operator(client, data).make(name)
    kept = await authorities(client, name)
    await client.delete(CONTROL_PLANES, name, propagation=propagation)

    async def remove() -> None:
        try:
            with contextlib.suppress(NotFound):
                await Operator(client, data).remove(name)
        finally:
            # Whatever was written so far, and whenever garbage is collected: the keys are there, and whose they are.
            client.deaths = None
            assert await authorities(client, name) == kept
            namespace = (await client.get(NAMESPACES, f"kplane-cp-{name}"))["metadata"]
            assert "ownerReferences" not in namespace
            if await gone(client, name):
                assert namespace["annotations"][f"{_GROUP}/retained-uid"] == uid

    # A record, three Secrets, a finalizer.
    assert await dying_at_every_write(client, remove) == 10
    assert data.kept
    left = (await client.list(SECRETS, namespace=f"kplane-cp-{name}")).items
    assert [item["metadata"]["name"] for item in left] == [_AUTHORITIES]

    heir = await begin(client, name, policy="Destroy", adopt=uid)

    async def adopt() -> None:
        assert await Operator(client, data).make(name) == made

    # A record, the authorities, two Secrets.
    assert await dying_at_every_write(client, adopt) == 8
    assert await authorities(client, name) == kept
    secret = await client.get(SECRETS, _AUTHORITIES, namespace=f"kplane-cp-{name}")
    assert secret["metadata"]["annotations"][f"{_GROUP}/uid"] == heir

    await client.delete(CONTROL_PLANES, name)
    assert await dying_at_every_write(client, lambda: _remove_all(Operator(client, data), name)) >= 6
    assert not data.kept


async def _remove_all(operator: Operator, name: str) -> None:
    while not await gone(operator.management.client, name):
        await operator.remove(name)
    with pytest.raises(NotFound):
        await operator.management.client.get(NAMESPACES, f"kplane-cp-{name}")


async def test_a_refused_control_plane_touches_nothing_even_where_it_was_begun(client: Mortal) -> None:
    """An operator that did not know of the record yet wrote down what it was about to make."""
    name, data = "premature", Data()
    uid = await begin(client, name, policy="Retain")
    await Operator(client, data).make(name)
    await client.delete(CONTROL_PLANES, name)
    await Operator(client, data).remove(name)
    kept, record = await authorities(client, name), await client.get(NAMESPACES, f"kplane-cp-{name}")

    for policy in ("Destroy", "Retain"):
        await begin(client, name, policy=policy)
        with pytest.raises(Trouble, match="keeps the data of an earlier control plane") as refused:
            await Operator(client, data).make(name)
        assert refused.value.reason == "DataRetained"
        await client.delete(CONTROL_PLANES, name)
        await Operator(client, data).remove(name)
        assert await gone(client, name)
    assert data.kept
    assert await authorities(client, name) == kept
    assert await client.get(NAMESPACES, f"kplane-cp-{name}") == record
    assert record["metadata"]["annotations"][f"{_GROUP}/retained-uid"] == uid


async def test_data_whose_control_plane_went_without_the_operator_are_retained(client: Mortal) -> None:
    name, data = "torn", Data()
    uid = await begin(client, name, policy="Destroy")
    made = await Operator(client, data).make(name)
    await client.delete(CONTROL_PLANES, name)
    await client.patch(CONTROL_PLANES, name, {"metadata": {"finalizers": None}})
    assert await gone(client, name)

    await begin(client, name, policy="Destroy")
    with pytest.raises(Trouble, match="retained-uid"):
        await Operator(client, data).make(name)
    namespace = (await client.get(NAMESPACES, f"kplane-cp-{name}"))["metadata"]
    assert namespace["labels"][f"{_GROUP}/retained"] == "true"
    assert namespace["annotations"][f"{_GROUP}/retained-uid"] == uid
    await client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": {f"{_GROUP}/adopt": uid}}})
    assert await Operator(client, data).make(name) == made
    await client.delete(CONTROL_PLANES, name)
    await _remove_all(Operator(client, data), name)


async def test_a_policy_that_changes_during_the_removal_counts(client: Mortal) -> None:
    """Destroyed is what Retain had only ended: no keys go while their data stay."""
    name, data = "undecided", Data()
    await begin(client, name, policy="Retain")
    operator = Operator(client, data)
    await operator.make(name)
    await client.delete(CONTROL_PLANES, name)
    client.deaths = set()
    with pytest.raises(Died):
        await operator.remove(name)
    client.deaths = None
    assert data.kept
    await client.patch(CONTROL_PLANES, name, {"spec": {"deletionPolicy": "Destroy"}})
    await _remove_all(operator, name)
    assert not data.kept


@pytest.mark.parametrize("spec", [{}, {"endpointRef": {"name": "somebody-elses"}}], ids=["managed", "external"])
async def test_retain_leaves_nothing_where_no_keys_were_made(client: Mortal, spec: dict[str, Any]) -> None:
    name = f"keyless-{len(spec)}"
    await begin(client, name, policy="Retain", spec=spec)
    operator = Operator(client, Data())
    await operator.namespaces.ensure(await operator.look(name))
    await client.delete(CONTROL_PLANES, name)
    await _remove_all(operator, name)
