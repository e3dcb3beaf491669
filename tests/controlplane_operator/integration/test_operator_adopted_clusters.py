"""An adopted cluster belongs to a single control plane at any address, and an endpoint stays with its cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from kplane.api.names import CONTROL_PLANE_UID_LABEL
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS

from .conftest import door_to, keep_kubeconfig, owner_of
from .line import Line

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]

_ACCOUNTS = ("controlplane-admin", "controlplane-controllers")
_SECRETS = ("kubeconfigSecretRef", "controllersSecretRef")


@pytest_asyncio.fixture(loop_scope="module")
async def lines() -> AsyncIterator[Callable[[ClusterConfig], Awaitable[ClusterConfig]]]:
    """Function that gives an API server another address, by a TCP proxy."""
    with contextlib.ExitStack() as stack:

        async def lay(config: ClusterConfig) -> ClusterConfig:
            line = Line(config.server)
            await line.lay()
            stack.callback(line.end)
            return config.with_server(f"https://127.0.0.1:{line.port}")

        yield lay


async def message(field: Any, name: str) -> str:
    conditions = (await field.get("ControlPlane", name))["status"]["conditions"]
    return str(next(item["message"] for item in conditions if item["type"] == "Ready"))


async def works(field: Any, name: str) -> None:
    for secret in _SECRETS:
        async with Client(await field.tenant(name, secret=secret), field_manager="kplane") as client:
            await client.list(NAMESPACES)


async def refused_with_nothing_published(field: Any, name: str) -> None:
    assert "endpoint" not in (await field.get("ControlPlane", name))["status"]
    assert "clusterUID" not in (await field.get("ControlPlane", name))["status"]
    assert (await field.client.list(SECRETS, namespace=f"kplane-cp-{name}")).items == []


async def remove(field: Any, name: str) -> None:
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


async def test_adoption_of_a_managed_cluster_is_refused(field: Any, house: dict[str, Any], adopt: Adopt) -> None:
    await works(field, "house")
    owner = await owner_of(await field.tenant("house"))
    await adopt("copycat", at=owner)
    await field.becomes("ControlPlane", "copycat", "EndpointInUse")
    assert "kplane runs it for control plane house;" in await message(field, "copycat")
    await refused_with_nothing_published(field, "copycat")
    async with Client(owner, field_manager="kplane") as client:
        for name in _ACCOUNTS[:1]:
            account = await client.get(SERVICE_ACCOUNTS, name, namespace="kplane-system")
            assert account["metadata"]["labels"][CONTROL_PLANE_UID_LABEL] == house["metadata"]["uid"]
    await remove(field, "copycat")
    await works(field, "house")
    assert (await field.get("ControlPlane", "house"))["status"]["phase"] == "Ready"


async def test_second_address_of_an_adopted_cluster_is_refused(field: Any, adopt: Adopt, lines: Any) -> None:
    management = ClusterConfig.load(field.handle.admin_kubeconfig)
    await adopt("first", at=management)
    first = await field.becomes("ControlPlane", "first", "Reconciled")
    async with Client(management, field_manager="kplane") as client:
        uid = (await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"]
        assert first["status"]["clusterUID"] == uid
        await adopt("second", at=await lines(management))
        await field.becomes("ControlPlane", "second", "EndpointInUse")
        assert f"control plane first has adopted this cluster (uid {uid}) already;" in await message(field, "second")
        await refused_with_nothing_published(field, "second")
        # The deletion of the second control plane does not change the first.
        await remove(field, "second")
        for resource, namespace in ((SERVICE_ACCOUNTS, "kplane-system"), (CLUSTER_ROLE_BINDINGS, None)):
            for name in _ACCOUNTS:
                obj = await client.get(resource, name, namespace=namespace)
                assert obj["metadata"]["labels"][CONTROL_PLANE_UID_LABEL] == first["metadata"]["uid"]
    await works(field, "first")


async def test_cluster_can_be_adopted_after_its_control_plane_is_deleted(
    field: Any, adopt: Adopt, tenant: Any, lines: Any
) -> None:
    owner = await owner_of(tenant.administrator)
    await adopt("former", at=owner)
    await field.becomes("ControlPlane", "former", "Reconciled")
    published = [await field.tenant("former", secret=secret) for secret in _SECRETS]
    await adopt("next", at=await lines(owner))
    await field.becomes("ControlPlane", "next", "EndpointInUse")
    await remove(field, "former")
    for config in published:
        await field.eventually(lambda config=config: field.refuses(config))
    await field.becomes("ControlPlane", "next", "Reconciled")
    await works(field, "next")


async def test_concurrent_adoptions_of_a_cluster_have_a_single_winner(
    field: Any, adopt: Adopt, tenant: Any, lines: Any
) -> None:
    owner = await owner_of(tenant.administrator)
    names = [f"racer-{number}" for number in range(4)]
    for name in names:
        await adopt(name, at=await lines(owner))

    async def reasons() -> list[str]:
        return sorted([await field.reason("ControlPlane", name) for name in names])

    desired = [*["EndpointInUse"] * 3, "Reconciled"]
    await field.eventually(reasons, lambda found: found == desired, timeout=60.0)
    (holder,) = [name for name in names if await field.reason("ControlPlane", name) == "Reconciled"]
    for name in names:
        if name != holder:
            await remove(field, name)
    await works(field, holder)


async def test_endpoint_changed_to_another_cluster_writes_nothing_there(field: Any, adopt: Adopt, tenant: Any) -> None:
    owner, management = await owner_of(tenant.administrator), ClusterConfig.load(field.handle.admin_kubeconfig)
    await adopt("steady", at=owner)
    before = (await field.becomes("ControlPlane", "steady", "Reconciled"))["status"]
    published = await field.tenant("steady")

    async with Client(management, field_manager="kplane") as client:
        for name in _ACCOUNTS:
            assert not await client.exists(CLUSTER_ROLE_BINDINGS, name)
        away = await door_to(field, "steady", config=management)
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "steady", {"spec": away})
        await field.becomes("ControlPlane", "steady", "ClusterChanged")
        condition_message = await message(field, "steady")
        assert f"the adopted cluster has {before['clusterUID']}; nothing was written there;" in condition_message
        for name in _ACCOUNTS:
            assert not await client.exists(CLUSTER_ROLE_BINDINGS, name)
            assert not await client.exists(SERVICE_ACCOUNTS, name, namespace="kplane-system")
    status = (await field.get("ControlPlane", "steady"))["status"]
    assert (status["endpoint"], status["clusterUID"]) == (before["endpoint"], before["clusterUID"])
    assert await field.tenant("steady") == published
    await works(field, "steady")

    # The deletion revokes the identities in the adopted cluster, with the published credentials.
    await remove(field, "steady")
    await field.eventually(lambda: field.refuses(published))


async def test_endpoint_restored_to_its_cluster_reconciles(field: Any, adopt: Adopt, tenant: Any) -> None:
    owner, management = await owner_of(tenant.administrator), ClusterConfig.load(field.handle.admin_kubeconfig)
    await adopt("returning", at=owner)
    await field.becomes("ControlPlane", "returning", "Reconciled")
    for config, reason in ((management, "ClusterChanged"), (owner, "Reconciled")):
        reference = await keep_kubeconfig(field, "returning", config=config)
        spec = {"endpoint": config.server, "credentialsSecretRef": reference}
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "returning", {"spec": spec})
        await field.becomes("ControlPlane", "returning", reason)
    await works(field, "returning")


async def test_deletion_keeps_identities_of_another_control_plane(field: Any, adopt: Adopt, tenant: Any) -> None:
    """A kplane of another management cluster may have adopted the same cluster."""
    owner = await owner_of(tenant.administrator)
    await adopt("guest", at=owner)
    await field.becomes("ControlPlane", "guest", "Reconciled")
    published = await field.tenant("guest", secret="controllersSecretRef")
    labels = {"metadata": {"labels": {CONTROL_PLANE_UID_LABEL: "of-another"}}}
    async with Client(owner, field_manager="kplane") as client:
        await client.patch(SERVICE_ACCOUNTS, "controlplane-controllers", labels, namespace="kplane-system")
        await remove(field, "guest")
        assert await client.exists(SERVICE_ACCOUNTS, "controlplane-controllers", namespace="kplane-system")
        assert not await client.exists(SERVICE_ACCOUNTS, "controlplane-admin", namespace="kplane-system")
        assert not await field.refuses(published)
        await client.delete(SERVICE_ACCOUNTS, "controlplane-controllers", namespace="kplane-system")
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-controllers")
