"""A published control plane whose data are lost: nothing starts on what is there, until a user accepts the loss."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest

from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.components.names import apiserver_name, etcd_name
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.data import Delete, identity_key, identity_of, owner_key
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NOTE = {"metadata": {"name": "note", "namespace": "default"}}


async def served(field: Any, name: str, **spec: Any) -> dict[str, Any]:
    """Create a control plane that has an object; returns its status."""
    await field.create("ControlPlane", name, deletionPolicy="Destroy", **spec)
    found = await field.becomes("ControlPlane", name, "Reconciled")
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(NOTE))
    return dict(found["status"])


async def is_lost(field: Any, name: str, *, status: dict[str, Any]) -> None:
    """Return when the condition says it, and no API server runs; published values have to stay."""
    found = await field.becomes("ControlPlane", name, "DataLost")
    ready = next(each for each in found["status"]["conditions"] if each["type"] == "Ready")
    assert ready["status"] == "False"
    assert f"set annotation {ACCEPT_DATA_LOSS_ANNOTATION} to {status['dataIdentity']}" in ready["message"]
    assert found["status"]["phase"] == "Failed"
    published = ("endpoint", "endpoints", "kubeconfigSecretRef", "version", "dataIdentity")
    assert {key: found["status"][key] for key in published} == {key: status[key] for key in published}
    directory = field.state / apiserver_name(name)
    await field.eventually(_probe(lambda: not find_processes(directory)))


async def accept(field: Any, name: str, identity: str) -> dict[str, Any]:
    """Accept the loss; returns the status when the control plane is Ready."""
    annotations = {ACCEPT_DATA_LOSS_ANNOTATION: identity}
    await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})
    return dict((await field.becomes("ControlPlane", name, "Reconciled"))["status"])


def _probe(look: Any) -> Any:
    async def probe() -> Any:
        return look()

    return probe


async def test_a_control_plane_whose_prefix_was_deleted_is_lost_until_the_data_are_back_or_given_up(field: Any) -> None:
    name, prefix = "emptied", "/clusters/emptied/"
    status = await served(field, name)
    async with field.handle.tenants_etcd.client() as etcd:
        kept = [each async for page in etcd.pages(prefix) for each in page.items]
        assert await identity_of(etcd, prefix) == status["dataIdentity"]
        await etcd.apply([Delete(owner_key(prefix)), Delete(identity_key(prefix))])
        await etcd.delete_prefix(prefix)
        await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": {"example.com/look": "1"}}})
        await is_lost(field, name, status=status)
        assert await identity_of(etcd, prefix) is None

        # A restore of the etcd brings them back.
        for each in kept:
            await etcd.put(each.key, each.value)
        await etcd.put(identity_key(prefix), status["dataIdentity"].encode())
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name), field_manager="kplane") as tenant:
            assert await tenant.exists(CONFIG_MAPS, "note", namespace="default")

        # The API server makes its namespaces again, with other uids; here before the operator looks.
        await etcd.delete_prefix(prefix)
        other = next(each.value for each in kept if each.key.endswith(b"/namespaces/default"))
        await etcd.put(f"{prefix}namespaces/kube-system".encode(), other)
        await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": {"example.com/look": "2"}}})
        await is_lost(field, name, status=status)
        await etcd.delete_prefix(prefix)
        renewed = await accept(field, name, status["dataIdentity"])
        assert renewed["dataIdentity"] == await identity_of(etcd, prefix) != status["dataIdentity"]


async def test_a_dedicated_control_plane_whose_volume_was_emptied_is_lost_until_that_is_accepted(field: Any) -> None:
    name = "wiped"
    status = await served(field, name, mode="Dedicated")
    directory = field.state / etcd_name(name)
    shutil.rmtree(directory / "data")
    for pid in find_processes(directory):
        os.kill(pid, signal.SIGKILL)
    await is_lost(field, name, status=status)
    renewed = await accept(field, name, status["dataIdentity"])
    assert renewed["dataIdentity"] != status["dataIdentity"]
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        await field.eventually(
            lambda: tenant.exists(CONFIG_MAPS, "note", namespace="default"), lambda found: not found, timeout=30
        )
