"""Retained data on real API servers and etcds: only a control plane with the adoption token gets them."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.rpc import RANGE, Method
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_GROUP = "controlplane.kplane.dev"
_ADOPT = f"{_GROUP}/adopt"
_NOTE = {"metadata": {"name": "note", "namespace": "default"}, "data": {"of": "the first"}}


USER_LIST = Method("/etcdserverpb.Auth/UserList", pb.AuthUserListRequest, pb.AuthUserListResponse)


async def keys(field: Any, path: str) -> int:
    return int(await field.handle.tenants_etcd.count(f"/clusters/{path}/"))


async def lasting_keys(field: Any, path: str) -> int:
    """Count the keys without an etcd lease. Keys with a lease, such as Events, expire without an API server."""
    prefix = f"/clusters/{path}/".encode()
    request = pb.RangeRequest(key=prefix, range_end=prefix[:-1] + b"0")
    async with field.handle.tenants_etcd.client() as etcd:
        answer = await etcd.connection.call(RANGE, request, timeout_seconds=20)
    return sum(not pair.lease for pair in answer.kvs)


async def users(field: Any) -> list[str]:
    async with field.handle.tenants_etcd.client() as etcd:
        answer = await etcd.connection.call(USER_LIST, pb.AuthUserListRequest(), timeout_seconds=20)
    return list(answer.users)


async def create(field: Any, name: str, *, adopt: str | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if adopt is not None:
        metadata["annotations"] = {_ADOPT: adopt}
    control_plane: dict[str, Any] = await field.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": spec})
    return control_plane


async def told(field: Any, name: str, reason: str) -> str:
    control_plane = await field.becomes("ControlPlane", name, reason)
    message: str = next(item["message"] for item in control_plane["status"]["conditions"] if item["type"] == "Ready")
    return message


async def delete(field: Any, name: str, *, propagation: str = "Background") -> None:
    await field.client.delete(CONTROL_PLANES, name, propagation=propagation)
    await field.gone(CONTROL_PLANES, name)


async def secrets(field: Any, namespace: str) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in (await field.client.list(SECRETS, namespace=namespace)).items}


async def retained(
    field: Any, name: str, *, propagation: str = "Background", **spec: Any
) -> tuple[str, ClusterConfig, ClusterConfig]:
    """Create a control plane with a note inside, and delete the control plane.

    Return the adoption token, and the former credentials of the administrator and the controllers.
    """
    uid = (await create(field, name, deletionPolicy="Retain", **spec))["metadata"]["uid"]
    await field.becomes("ControlPlane", name, "Reconciled")
    administrator = await field.tenant(name)
    controllers = await field.tenant(name, secret="controllersSecretRef")
    async with Client(administrator, field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(_NOTE))
    await delete(field, name, propagation=propagation)
    record = (await field.client.get(NAMESPACES, f"kplane-cp-{name}"))["metadata"]["annotations"]
    assert record[f"{_GROUP}/retained-uid"] == uid
    return record[f"{_GROUP}/adoption-token"], administrator, controllers


async def adopted(field: Any, name: str) -> ClusterConfig:
    """Wait for a control plane, assert that it has the note, and return its administrator's credentials."""
    await field.becomes("ControlPlane", name, "Reconciled")
    administrator: ClusterConfig = await field.tenant(name)
    async with Client(administrator, field_manager="kplane") as tenant:
        assert (await tenant.get(CONFIG_MAPS, "note", namespace="default"))["data"] == _NOTE["data"]
    return administrator


@pytest.mark.slow
# Foreground garbage collection deletes objects with an ownerReference at once, before the operator acts.
@pytest.mark.parametrize(
    ("mode", "propagation", "certificates"), [("Virtual", "Background", False), ("Dedicated", "Foreground", True)]
)
async def test_control_plane_with_adoption_token_gets_retained_data(
    field: Any, mode: str, propagation: str, *, certificates: bool
) -> None:
    name = f"heir-{mode.lower()}"
    namespace = f"kplane-cp-{name}"
    spec: dict[str, Any] = {"mode": mode}
    if certificates:
        await field.create("ControlPlaneClass", "by-certificate", auth={"model": "x509"})
        spec["classRef"] = {"name": "by-certificate"}
    token, former, controllers = await retained(field, name, propagation=propagation, **spec)
    record = (await field.client.get(NAMESPACES, namespace))["metadata"]
    assert "ownerReferences" not in record
    assert record["labels"][f"{_GROUP}/retained"] == "true"
    retained_secrets = await secrets(field, namespace)
    assert set(retained_secrets) == {"control-plane-authorities"}
    assert "ownerReferences" not in retained_secrets["control-plane-authorities"]["metadata"]
    assert find_processes(field.state) == []

    control_plane = await create(field, name, adopt=token, deletionPolicy="Destroy", **spec)
    administrator = await adopted(field, name)
    assert administrator.ca_data == former.ca_data
    assert (former.token is None) is certificates
    for outsider in (former, controllers):
        config = outsider.with_server(administrator.server)
        await field.eventually(lambda config=config: field.refuses(config))
    record = (await field.client.get(NAMESPACES, namespace))["metadata"]
    assert f"{_GROUP}/retained" not in record["labels"]
    assert f"{_GROUP}/retained-uid" not in record["annotations"]
    assert f"{_GROUP}/adoption-token" not in record["annotations"]
    assert record["annotations"][f"{_GROUP}/uid"] == control_plane["metadata"]["uid"]
    assert (await secrets(field, namespace))["control-plane-authorities"]["data"] == retained_secrets[
        "control-plane-authorities"
    ]["data"]

    await delete(field, name)
    await field.gone(NAMESPACES, namespace)
    assert await keys(field, name) == 0
    assert find_processes(field.state) == []


@pytest.mark.slow
async def test_retained_data_are_refused_without_token_and_matching_spec(field: Any) -> None:
    token, _, _ = await retained(field, "estate", virtual={"clusterPath": "grounds"})
    path: dict[str, Any] = {"virtual": {"clusterPath": "grounds"}, "deletionPolicy": "Destroy"}
    key_count = await lasting_keys(field, "grounds")
    assert key_count > 100
    record = await field.client.get(NAMESPACES, "kplane-cp-estate")
    uid = record["metadata"]["annotations"][f"{_GROUP}/retained-uid"]
    attempts: list[tuple[str, str | None, dict[str, Any], str]] = [
        ("estate", None, path, f"set annotation {_ADOPT} to the value of annotation {_GROUP}/adoption-token"),
        ("estate", "0000", path, "does not match"),
        ("estate", uid, path, "does not match"),
        ("estate", token, {"deletionPolicy": "Destroy"}, "set spec.virtual.clusterPath to that instead of 'estate'"),
        ("estate", token, {"mode": "Dedicated", "deletionPolicy": "Destroy"}, "of mode Virtual"),
        ("estate", token, {"endpointRef": {"name": "any"}, "deletionPolicy": "Destroy"}, "remove spec.endpointRef"),
        ("squatter", token, path, "holds what control plane estate left"),
    ]
    for name, adopt, spec, sentence in attempts:
        await create(field, name, adopt=adopt, **spec)
        message = await told(field, name, "DataRetained")
        assert sentence in message
        assert token not in message
        await delete(field, name)
    assert await lasting_keys(field, "grounds") == key_count
    assert await field.client.get(NAMESPACES, "kplane-cp-estate") == record

    # A waiting control plane gets the data once annotated with the token.
    # Another control plane gets the path once the record is gone.
    await create(field, "estate", **path)
    await told(field, "estate", "DataRetained")
    assert f"cp-{uid}" not in await users(field)
    # A user of the etcd may be left over, if somebody removed the finalizer of the former control plane.
    async with field.handle.tenants_etcd.client() as etcd:
        await etcd.access.add_user(f"cp-{uid}")
    await field.client.patch(CONTROL_PLANES, "estate", {"metadata": {"annotations": {_ADOPT: token}}})
    await adopted(field, "estate")
    assert f"cp-{uid}" not in await users(field)
    await delete(field, "estate")
    assert await keys(field, "grounds") == 0
    await create(field, "squatter", **path)
    await field.becomes("ControlPlane", "squatter", "Reconciled")


async def test_forged_retained_namespace_is_neither_adopted_nor_deleted(field: Any) -> None:
    forged = {"retained-uid": "forged", "adoption-token": "forged", "mode": "Virtual", "cluster-path": "forgery"}
    annotations = {f"{_GROUP}/{key}": value for key, value in forged.items()}
    # The namespace has the label of another control plane, or none.
    for name, labels in (("forged", {f"{_GROUP}/name": "other"}), ("bare", {})):
        metadata = {"name": f"kplane-cp-{name}", "labels": labels, "annotations": annotations}
        await field.client.create(NAMESPACES, {"metadata": metadata})
        await create(field, name, adopt="forged", virtual={"clusterPath": name}, deletionPolicy="Destroy")
        await told(field, name, "NamespaceConflict")
        await delete(field, name)
        assert (await field.client.get(NAMESPACES, f"kplane-cp-{name}"))["status"]["phase"] == "Active"
        assert await secrets(field, f"kplane-cp-{name}") == {}
        async with Client(ClusterConfig.load(field.handle.operator_kubeconfig), field_manager="kplane") as operator:
            # Only the operator may delete namespaces with a label of kplane.
            await operator.delete(NAMESPACES, f"kplane-cp-{name}")
