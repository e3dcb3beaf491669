"""Control planes from creation to deletion, on real API servers and a real etcd."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from api.names import ALLOW_ENDPOINT_LABEL
from provider import CONFIG_MAPS, NAMESPACES, SECRETS, Client, ClusterConfig
from workloads import find_processes

pytestmark = pytest.mark.integration


async def keys(field: Any, path: str) -> int:
    return int(await field.handle.tenants_etcd.count(f"/clusters/{path}/"))


async def credentials_secret(field: Any, name: str, config: Any) -> dict[str, str]:
    import base64
    import json

    kubeconfig = json.dumps(config.to_kubeconfig()).encode()
    body = {
        "metadata": {"name": name, "namespace": "default", "labels": {ALLOW_ENDPOINT_LABEL: "true"}},
        "data": {"kubeconfig": base64.b64encode(kubeconfig).decode()},
    }
    await field.client.apply(SECRETS, body)
    return {"name": name, "namespace": "default"}


_KEPT_ALIVE = {"leases", "masterleases", "peerserverleases", "events"}


async def others(field: Any, name: str) -> dict[str, str]:
    """Return hashes of all keys in the shared etcd but those of one control plane, once nobody writes to them.

    Without those that API servers write by themselves all the time: that they are there, and Events.
    """

    def of_interest(key: str) -> bool:
        return not key.startswith(f"/clusters/{name}/") and not _KEPT_ALIVE & set(key.split("/"))

    async def digests() -> dict[str, str]:
        return dict(await field.handle.tenants_etcd.digests("/", of_interest=of_interest))

    found: dict[str, str] = await field.settles(digests)
    return found


async def test_names_that_begin_alike_share_nothing(field: Any) -> None:
    names = ("a", "a-b", "aa")
    for name in names:
        await field.create("ControlPlane", name, deletionPolicy="Destroy")
    for name in names:
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name)) as tenant:
            await tenant.create(
                CONFIG_MAPS, {"metadata": {"name": "mine", "namespace": "default"}, "data": {"of": name}}
            )
    before = await others(field, "a")
    await field.client.delete(field_kind("ControlPlane"), "a")
    await field.gone(field_kind("ControlPlane"), "a")
    await field.gone(NAMESPACES, "kplane-cp-a")
    assert await keys(field, "a") == 0
    assert await others(field, "a") == before
    for name in ("a-b", "aa"):
        assert sum(key.startswith(f"/clusters/{name}/") for key in before) > 100
        async with Client(await field.tenant(name)) as tenant:
            assert (await tenant.get(CONFIG_MAPS, "mine", namespace="default"))["data"] == {"of": name}


async def test_retain_keeps_the_data_and_ends_everything_else(field: Any) -> None:
    await field.create("ControlPlane", "kept")
    await field.becomes("ControlPlane", "kept", "Reconciled")
    await field.client.delete(field_kind("ControlPlane"), "kept")
    await field.gone(field_kind("ControlPlane"), "kept")
    assert await keys(field, "kept") > 100
    assert find_processes(field.state) == []


async def test_a_dedicated_control_plane_has_its_own_etcd(field: Any) -> None:
    await field.create("ControlPlane", "own", mode="Dedicated", deletionPolicy="Destroy")
    found = await field.becomes("ControlPlane", "own", "Reconciled")
    assert found["status"]["phase"] == "Ready"
    assert "clusterPath" not in found["status"]
    async with Client(await field.tenant("own")) as tenant:
        assert {"default", "kube-system", "kplane-system"} <= {
            item["metadata"]["name"] for item in (await tenant.list(NAMESPACES)).items
        }
    await field.client.delete(field_kind("ControlPlane"), "own")
    await field.gone(field_kind("ControlPlane"), "own")
    assert find_processes(field.state) == []


async def test_every_order_of_creation_converges(field: Any, shared: ClusterConfig) -> None:
    secret = await credentials_secret(field, "shared-credentials", shared)
    orders = list(itertools.permutations(("class", "endpoint", "control plane", "registration")))

    async def create(number: int, what: str) -> None:
        name = f"order-{number}"
        match what:
            case "class":
                await field.create("ControlPlaneClass", name, controllers={"profile": "Core"})
            case "endpoint":
                await field.create("ControlPlaneEndpoint", name, endpoint=shared.server, credentialsSecretRef=secret)
            case "control plane":
                await field.create("ControlPlane", name, classRef={"name": name}, endpointRef={"name": name})
            case _:
                await field.create(
                    "ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["controllers"]
                )

    for number, order in enumerate(orders):
        for what in order:
            await create(number, what)
    for number in range(len(orders)):
        found = await field.becomes("ControlPlaneRegistration", f"order-{number}", "Resolved")
        status = found["status"]
        assert status["ready"] is True
        assert status["resolvedEndpoint"] == f"{shared.server}/clusters/order-{number}/control-plane"
        assert status["resolvedControllersSecretRef"]["namespace"] == f"kplane-cp-order-{number}"
        assert status["controllers"] == {"profile": "Core"}


async def test_secrets_that_somebody_deletes_or_edits_come_back(field: Any) -> None:
    await field.create("ControlPlane", "drift", deletionPolicy="Destroy")
    found = await field.becomes("ControlPlane", "drift", "Reconciled")
    reference = found["status"]["kubeconfigSecretRef"]
    before = await field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
    await field.client.delete(SECRETS, reference["name"], namespace=reference["namespace"])

    async def works() -> bool:
        async with Client(await field.tenant("drift")) as tenant:
            await tenant.list(NAMESPACES)
        return True

    await field.eventually(works)
    await field.client.patch(
        SECRETS, reference["name"], {"data": {"kubeconfig": "Z2FyYmFnZQ=="}}, namespace=reference["namespace"]
    )
    await field.eventually(works)
    after = await field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
    assert set(after["data"]) == set(before["data"]) == {"kubeconfig", "kubeconfig-external", "ca.crt"}


async def test_a_killed_api_server_comes_back_and_registrations_stay_resolved(field: Any) -> None:
    await field.create("ControlPlane", "hit", deletionPolicy="Destroy")
    await field.create("ControlPlaneRegistration", "hit", controlPlaneRef={"name": "hit"}, services=["Controllers"])
    await field.becomes("ControlPlaneRegistration", "hit", "Resolved")
    before = await field.get("ControlPlaneRegistration", "hit")
    [pid] = find_processes(field.state)
    assert "/clusters/hit" in Path(f"/proc/{pid}/cmdline").read_text()
    os.kill(pid, signal.SIGKILL)

    async def another() -> bool:
        found = find_processes(field.state)
        return bool(found) and found != [pid]

    await field.eventually(another)
    await field.becomes("ControlPlane", "hit", "Reconciled")
    after = await field.get("ControlPlaneRegistration", "hit")
    assert after["status"] == before["status"]


async def test_a_class_registers_its_control_planes_and_never_touches_what_a_user_made(field: Any) -> None:
    await field.create("ControlPlaneClass", "auto", defaultServices=["controllers"], deletionPolicy="Destroy")
    await field.create("ControlPlaneRegistration", "users", controlPlaneRef={"name": "other"}, services=[])
    for name in ("made", "users"):
        await field.create("ControlPlane", name, classRef={"name": "auto"})
    await field.becomes("ControlPlaneRegistration", "made", "Resolved")
    await field.becomes("ControlPlane", "users", "Reconciled")
    made = await field.get("ControlPlaneRegistration", "made")
    assert made["metadata"]["ownerReferences"][0]["name"] == "made"
    assert (await field.get("ControlPlaneRegistration", "users"))["spec"]["controlPlaneRef"] == {"name": "other"}


def field_kind(kind: str) -> Any:
    from controlplane_operator.kinds import CONTROL_PLANES

    assert kind == "ControlPlane"
    return CONTROL_PLANES


async def test_nothing_is_written_when_nothing_changed(field: Any) -> None:
    await field.create("ControlPlane", "still", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "still", "Reconciled")

    async def versions() -> dict[str, str]:
        found = {"cp": (await field.get("ControlPlane", "still"))["metadata"]["resourceVersion"]}
        for item in (await field.client.list(SECRETS, namespace="kplane-cp-still")).items:
            found[item["metadata"]["name"]] = item["metadata"]["resourceVersion"]
        return found

    await field.becomes("ControlPlaneEndpoint", "still", "Reconciled")
    before = await field.settles(versions)
    # Another control plane's whole life gives the first one's reconciles time to show themselves.
    await field.create("ControlPlane", "other", deletionPolicy="Destroy", virtual={"clusterPath": "elsewhere"})
    await field.becomes("ControlPlane", "other", "Reconciled")
    await asyncio.gather(
        *(field.client.patch(NAMESPACES, "kplane-cp-still", {"metadata": {"labels": {"x": str(n)}}}) for n in range(3))
    )
    await field.client.delete(field_kind("ControlPlane"), "other")
    await field.gone(field_kind("ControlPlane"), "other")
    assert await versions() == before
