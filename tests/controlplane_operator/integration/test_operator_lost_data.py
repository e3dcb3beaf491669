"""A published control plane without its data does not start on the remaining data until a user accepts the loss."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import Any

import pytest

from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.components.names import apiserver_name, etcd_name
from kplane.controlplane_operator.backends.served_data import UNSEEN_REVISIONS
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.data import Delete, identity_key, identity_of, owner_key
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.errors import Expired
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NOTE = {"metadata": {"name": "note", "namespace": "default"}}


async def served(field: Any, name: str, **spec: Any) -> dict[str, Any]:
    """Create a control plane with an object inside, and return its status."""
    await field.create("ControlPlane", name, deletionPolicy="Destroy", **spec)
    control_plane = await field.becomes("ControlPlane", name, "Reconciled")
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(NOTE))
    return dict(control_plane["status"])


async def is_lost(field: Any, name: str, *, status: dict[str, Any]) -> None:
    """Wait for condition reason DataLost and for the end of the API server. Published values must stay."""
    control_plane = await field.becomes("ControlPlane", name, "DataLost")
    ready = next(condition for condition in control_plane["status"]["conditions"] if condition["type"] == "Ready")
    assert ready["status"] == "False"
    assert f"set annotation {ACCEPT_DATA_LOSS_ANNOTATION} to {status['dataIdentity']}" in ready["message"]
    assert control_plane["status"]["phase"] == "Failed"
    published = ("endpoint", "endpoints", "kubeconfigSecretRef", "version", "dataIdentity")
    assert {key: control_plane["status"][key] for key in published} == {key: status[key] for key in published}
    directory = field.state / apiserver_name(name)
    await field.eventually(_probe(lambda: not find_processes(directory)))


async def accept(field: Any, name: str, identity: str) -> dict[str, Any]:
    """Accept the loss, wait until the control plane is Ready, and return its status."""
    annotations = {ACCEPT_DATA_LOSS_ANNOTATION: identity}
    await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})
    return dict((await field.becomes("ControlPlane", name, "Reconciled"))["status"])


async def is_told_to_list_again(tenant: Client, *, since: str) -> bool:
    """Return whether a watch from a version gets 410. Raises TimeoutError if the watch lasts for 30 s."""
    async with asyncio.timeout(30):
        try:
            async for _ in tenant.watch(CONFIG_MAPS, resource_version=since, namespace="default"):
                pass
        except Expired:
            return True
    return False


def _probe(look: Any) -> Any:
    async def probe() -> Any:
        return look()

    return probe


async def test_deleted_etcd_prefix_is_lost_until_restored_or_accepted(field: Any) -> None:
    name, prefix = "emptied", "/clusters/emptied/"
    status = await served(field, name)
    async with field.handle.tenants_etcd.client() as etcd:
        pairs = [pair async for page in etcd.pages(prefix) for pair in page.items]
        assert await identity_of(etcd, prefix) == status["dataIdentity"]
        await etcd.apply([Delete(owner_key(prefix)), Delete(identity_key(prefix))])
        await etcd.delete_prefix(prefix)
        # The operator reads the identities of all control planes every 30 s.
        await is_lost(field, name, status=status)
        assert await identity_of(etcd, prefix) is None

        # A restore of the etcd restores the data.
        for pair in pairs:
            await etcd.put(pair.key, pair.value)
        await etcd.put(identity_key(prefix), status["dataIdentity"].encode())
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name), field_manager="kplane") as tenant:
            assert await tenant.exists(CONFIG_MAPS, "note", namespace="default")

        # The API server recreates its namespaces with other uids, here before the next check of the operator.
        await etcd.delete_prefix(prefix)
        namespace = next(pair.value for pair in pairs if pair.key.endswith(b"/namespaces/default"))
        await etcd.put(f"{prefix}namespaces/kube-system".encode(), namespace)
        await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": {"example.com/look": "2"}}})
        await is_lost(field, name, status=status)
        await etcd.delete_prefix(prefix)
        renewed = await accept(field, name, status["dataIdentity"])
        assert renewed["dataIdentity"] == await identity_of(etcd, prefix) != status["dataIdentity"]


async def test_data_of_sleeper_are_lost_without_a_request(field: Any) -> None:
    name, prefix = "dreamer", "/clusters/dreamer/"
    await field.create("ControlPlane", name, deletionPolicy="Destroy", virtual={"start": "OnDemand"})
    status = (await field.becomes("ControlPlane", name, "Hibernated"))["status"]
    async with field.handle.tenants_etcd.client() as etcd:
        await etcd.apply([Delete(identity_key(prefix))])
        await etcd.delete_prefix(prefix)
        await is_lost(field, name, status=status)


async def test_emptied_volume_of_dedicated_etcd_is_lost_until_accepted(field: Any) -> None:
    name = "wiped"
    status = await served(field, name, mode="Dedicated")
    directory = field.state / etcd_name(name)
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        seen = (await tenant.get(CONFIG_MAPS, "note", namespace="default"))["metadata"]["resourceVersion"]
    shutil.rmtree(directory / "data")
    for pid in find_processes(directory):
        os.kill(pid, signal.SIGKILL)
    await is_lost(field, name, status=status)
    # No new etcd began in the emptied volume.
    assert not (directory / "data" / "member" / "wal").exists()
    renewed = await accept(field, name, status["dataIdentity"])
    assert renewed["dataIdentity"] != status["dataIdentity"]
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        await field.eventually(
            lambda: tenant.exists(CONFIG_MAPS, "note", namespace="default"), lambda found: not found, timeout=30
        )
        # The new data have higher revisions, so a client that saw the lost data notices it.
        assert await is_told_to_list_again(tenant, since=seen)
    assert renewed["servedRevision"] > UNSEEN_REVISIONS
