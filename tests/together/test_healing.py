"""Killed processes restart, and other processes keep running."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import pytest_asyncio

from kplane.controlplane_operator.tenant.bootstrap import CONTROLLERS_BINDING
from kplane.provider import Client
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, SERVICE_ACCOUNTS

from .conftest import pids_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


async def works(platform: Any, name: str, *, namespace: str) -> None:
    """Wait until the tenant's API server responds, and its controllers create a ServiceAccount in a new namespace."""

    async def account() -> Any:
        async with Client(await platform.tenant(name), field_manager="kplane") as client:
            await client.apply(NAMESPACES, {"metadata": {"name": namespace}}, force=True)
            return await client.get(SERVICE_ACCOUNTS, "default", namespace=namespace)

    await platform.eventually(account)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient(platform: Any) -> str:
    await platform.create("ControlPlaneClass", "healing", deletionPolicy="Destroy", defaultServices=["Controllers"])
    await platform.create("ControlPlane", "patient", classRef={"name": "healing"})
    await platform.ready("ControlPlaneRegistration", "patient")
    await platform.running("patient")
    await works(platform, "patient", namespace="before")
    return "patient"


@pytest_asyncio.fixture(loop_scope="module")
async def healed(platform: Any, patient: str) -> str:
    """Control plane that is ready again after the previous test, with its controllers."""
    await platform.ready("ControlPlane", patient)
    await platform.running(patient)
    return patient


async def ready_since(platform: Any, name: str) -> str:
    conditions = (await platform.status("ControlPlane", name))["conditions"]
    return next(condition["lastTransitionTime"] for condition in conditions if condition["type"] == "Ready")


async def test_killed_operator_restarts_and_tenants_keep_running(platform: Any, healed: str) -> None:
    directory = platform.handle.operator_directory
    api_servers = pids_of(directory, "kube-apiserver")
    [operator] = pids_of(platform.handle.directory, "kplane.controlplane_operator.main")
    instance = await platform.running(healed)
    since = await ready_since(platform, healed)
    os.kill(operator, signal.SIGKILL)

    await works(platform, healed, namespace="without-operator")
    await platform.create("ControlPlane", "later", classRef={"name": "healing"})
    await platform.ready("ControlPlane", "later")
    await works(platform, "later", namespace="after")

    assert api_servers < pids_of(directory, "kube-apiserver")
    assert await platform.running(healed) == instance
    # The status has no transition.
    assert await ready_since(platform, healed) == since
    await platform.delete("ControlPlane", "later")
    await platform.eventually(lambda: platform.instance("later") is None)


async def test_killed_mcm_restarts_with_its_instances(platform: Any, healed: str) -> None:
    [mcm] = pids_of(platform.handle.directory, "kplane.mcm.main")
    before = await platform.running(healed)
    os.kill(mcm, signal.SIGKILL)

    after = await platform.running(healed, other_than=before)
    assert pids_of(platform.handle.mcm_directory, "kube-controller-manager") == {after}
    await works(platform, healed, namespace="after-mcm")


@pytest.mark.slow
async def test_running_is_unknown_while_mcm_hangs_then_true(platform: Any, healed: str) -> None:
    """The watchdog of mcm ends the instance when its Lease expires. The operator reads the Lease every 20 s."""

    async def condition() -> dict[str, Any]:
        conditions = (await platform.status("ControlPlaneRegistration", healed))["conditions"]
        return next(entry for entry in conditions if entry["type"] == "Running")

    await platform.eventually(condition, lambda found: found["status"] == "True")
    [mcm] = pids_of(platform.handle.directory, "kplane.mcm.main")
    os.kill(mcm, signal.SIGSTOP)
    try:
        stale = await platform.eventually(condition, lambda found: found["status"] != "True", timeout=240.0)
        assert (stale["status"], stale["reason"]) == ("Unknown", "HeartbeatStale")
        assert "Lease kube-system/kube-controller-manager" in stale["message"]
        assert not pids_of(platform.handle.mcm_directory, "kube-controller-manager")
    finally:
        os.kill(mcm, signal.SIGCONT)
    await platform.eventually(condition, lambda found: found["status"] == "True")
    await works(platform, healed, namespace="after-hang")


async def test_killed_instance_restarts(platform: Any, healed: str) -> None:
    before = await platform.running(healed)
    os.kill(before, signal.SIGKILL)

    await platform.running(healed, other_than=before)
    await works(platform, healed, namespace="after-instance")


async def test_killed_api_server_restarts_with_data_and_same_status(platform: Any, healed: str) -> None:
    published = await platform.status("ControlPlane", healed)
    registered = await platform.ready("ControlPlaneRegistration", healed)
    [api_server] = pids_of(platform.handle.operator_directory, "kube-apiserver")
    os.kill(api_server, signal.SIGKILL)

    await works(platform, healed, namespace="after-api-server")
    async with Client(await platform.tenant(healed), field_manager="kplane") as client:
        names = {namespace["metadata"]["name"] for namespace in (await client.list(NAMESPACES)).items}
    assert {"before", "after-api-server"} <= names
    status = await platform.ready("ControlPlane", healed)
    assert {key: status[key] for key in ("endpoint", "kubeconfigSecretRef", "controllersSecretRef")} == {
        key: published[key] for key in ("endpoint", "kubeconfigSecretRef", "controllersSecretRef")
    }
    renewed = await platform.ready("ControlPlaneRegistration", healed)
    resolved = [key for key in registered if key.startswith("resolved")]
    assert {key: renewed[key] for key in resolved} == {key: registered[key] for key in resolved}


@pytest.mark.slow
async def test_controllers_binding_that_a_tenant_deletes_is_restored(platform: Any, healed: str) -> None:
    """The operator verifies each control plane after minutes. A watch would keep the control plane awake."""
    instance = await platform.running(healed)
    async with Client(await platform.tenant(healed), field_manager="kplane") as client:
        await client.delete(CLUSTER_ROLE_BINDINGS, CONTROLLERS_BINDING)
        await platform.eventually(lambda: client.get(CLUSTER_ROLE_BINDINGS, CONTROLLERS_BINDING), timeout=100.0)
    await works(platform, healed, namespace="after-rights")

    async def running() -> str:
        conditions = (await platform.status("ControlPlaneRegistration", healed))["conditions"]
        return next(str(condition["reason"]) for condition in conditions if condition["type"] == "Running")

    await platform.eventually(running, lambda reason: reason == "InstanceRunning")
    assert await platform.running(healed) == instance
