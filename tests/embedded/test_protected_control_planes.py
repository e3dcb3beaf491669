"""The admission policy that allows only the operator to delete namespaces, keys and volumes of control planes.

The policy is in deploy/rbac and in the chart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.surroundings import may_read, open_namespace
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    GROUP,
    PROTECTION_FINALIZER,
    RETAINED_LABEL,
    RETAINED_UID_ANNOTATION,
    UID_ANNOTATION,
)
from kplane.controlplane_operator.secret_access import DEFAULT_SECRETS_ROLE
from kplane.embedded.handle import Handle
from kplane.provider import ApiError, Client, ClusterConfig, NotFound, Resource
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LIVING = "kplane-cp-guarded"
HASHED = "kplane-cpx-guarded-0123456789abcdef"
UNLABELLED = "kplane-cp-guarded-unlabelled"
RETAINED = "kplane-cp-guarded-retained"
ADOPTED = "kplane-cp-guarded-adopted"
FOREIGN = "kplane-cp-guarded-foreign"
ELSEWHERE = "guarded-elsewhere"

_LABELLED = {CONTROL_PLANE_LABEL: "guarded"}
_UID = {UID_ANNOTATION: "a-uid"}
_OWNER = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ControlPlane", "name": "guarded", "uid": "a-uid"}


@dataclass(frozen=True, slots=True)
class Cluster:
    admin: Client
    operator: Client
    controller: Client
    """The namespace controller of the cluster."""


async def refusal(call: Callable[[], Any]) -> str:
    """Return the policy's refusal of a call, or an empty string if the call is allowed."""
    try:
        await call()
    except NotFound:
        return ""
    except ApiError as error:
        if "ValidatingAdmissionPolicy 'kplane-controlplanes'" not in str(error):
            raise
        return str(error)
    return ""


async def deletion(client: Client, resource: Resource, name: str, *, namespace: str | None = None) -> str:
    path = resource.path(name, namespace=namespace)
    return await refusal(lambda: client.request("DELETE", path, params={"dryRun": "All"}))


async def change(client: Client, name: str, **metadata: Any) -> str:
    path = NAMESPACES.path(name)
    return await refusal(
        lambda: client.request(
            "PATCH",
            path,
            body={"metadata": metadata},
            params={"dryRun": "All"},
            content_type="application/merge-patch+json",
        )
    )


def secret(name: str, *finalizers: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": LIVING, "finalizers": list(finalizers)}}


def claim(name: str, *finalizers: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {**secret(name, *finalizers), "spec": spec}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(api_server: Handle, eventually: Callable[..., Any]) -> AsyncIterator[Cluster]:
    admin_config = ClusterConfig.load(api_server.admin_kubeconfig)
    controller = replace(
        admin_config, impersonation=Impersonation("system:serviceaccount:kube-system:namespace-controller")
    )
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(config, field_manager="kplane"))
            for config in (admin_config, ClusterConfig.load(api_server.operator_kubeconfig), controller)
        ]
        cluster = Cluster(*clients)
        namespaces: dict[str, dict[str, Any]] = {
            LIVING: {"labels": _LABELLED, "annotations": _UID},
            HASHED: {"labels": _LABELLED, "annotations": _UID},
            UNLABELLED: {"annotations": _UID},
            RETAINED: {
                "labels": {**_LABELLED, RETAINED_LABEL: "true"},
                "annotations": {RETAINED_UID_ANNOTATION: "a-uid"},
            },
            ADOPTED: {"labels": _LABELLED, "ownerReferences": [_OWNER]},
            FOREIGN: {},
            ELSEWHERE: {"labels": _LABELLED, "annotations": _UID},
        }
        for name, metadata in namespaces.items():
            await cluster.admin.create(NAMESPACES, {"metadata": {"name": name, **metadata}})
        await open_namespace(cluster.admin, LIVING, role=DEFAULT_SECRETS_ROLE)
        try:
            for name, finalizers in (("keys", [PROTECTION_FINALIZER]), ("plain", [])):
                await cluster.admin.create(SECRETS, secret(name, *finalizers))
                await cluster.admin.create(PERSISTENT_VOLUME_CLAIMS, claim(name, *finalizers))
            # Another test may have suspended the policy a moment ago.
            await eventually(lambda: deletion(cluster.admin, NAMESPACES, LIVING))
            await eventually(lambda: may_read(cluster.operator, LIVING))
            yield cluster
        finally:
            for resource in (SECRETS, PERSISTENT_VOLUME_CLAIMS):
                body = {"metadata": {"finalizers": None}}
                await cluster.admin.patch(resource, "keys", body, namespace=LIVING)
            for name in namespaces:
                # The garbage collector may have deleted the namespace of ADOPTED, whose owner does not exist.
                with suppress(NotFound):
                    await cluster.operator.delete(NAMESPACES, name)


async def test_only_operator_deletes_control_plane_namespaces(cluster: Cluster) -> None:
    for name in (LIVING, HASHED, UNLABELLED):
        assert await deletion(cluster.admin, NAMESPACES, name)
        assert await deletion(cluster.operator, NAMESPACES, name) == ""
    # The garbage collector must delete the namespace of an adopted control plane, which has no keys.
    for name in (RETAINED, ADOPTED, FOREIGN, ELSEWHERE):
        assert await deletion(cluster.admin, NAMESPACES, name) == ""


async def test_refusal_names_the_kubectl_delete_command(cluster: Cluster) -> None:
    message = f"namespace {LIVING} holds the keys of a control plane; to delete both, run: "
    assert f"{message}kubectl delete controlplane guarded" in await deletion(cluster.admin, NAMESPACES, LIVING)
    assert (
        f"secrets keys in namespace {LIVING} cannot be made anew: only the operator of kplane deletes it; to delete it"
        " with its control plane, run: kubectl delete controlplane guarded"
        in await deletion(cluster.admin, SECRETS, "keys", namespace=LIVING)
    )


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        (LIVING, {"labels": {CONTROL_PLANE_LABEL: None}}),
        (LIVING, {"labels": {CONTROL_PLANE_LABEL: "another"}}),
        (LIVING, {"labels": {RETAINED_LABEL: "true"}}),
        (LIVING, {"labels": None}),
        (LIVING, {"annotations": {UID_ANNOTATION: None}}),
        (LIVING, {"annotations": {UID_ANNOTATION: "another"}}),
        (UNLABELLED, {"annotations": None}),
        (UNLABELLED, {"labels": {RETAINED_LABEL: "true"}}),
        (RETAINED, {"labels": {RETAINED_LABEL: None}}),
        (RETAINED, {"annotations": {RETAINED_UID_ANNOTATION: "another"}}),
    ],
)
async def test_only_operator_changes_protecting_metadata(cluster: Cluster, name: str, metadata: dict[str, Any]) -> None:
    message = await change(cluster.admin, name, **metadata)
    assert "only the operator of kplane changes the labels name and retained, and the annotations uid" in message
    assert await change(cluster.operator, name, **metadata) == ""


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        (LIVING, {"labels": {"team": "a"}, "annotations": {"note": "b"}}),
        (UNLABELLED, {"labels": {CONTROL_PLANE_LABEL: "guarded"}}),
        (FOREIGN, {"labels": {"team": "a", RETAINED_LABEL: "true"}}),
        (ELSEWHERE, {"labels": {CONTROL_PLANE_LABEL: None}}),
    ],
)
async def test_changes_of_other_metadata_are_allowed(cluster: Cluster, name: str, metadata: dict[str, Any]) -> None:
    assert await change(cluster.admin, name, **metadata) == ""


@pytest.mark.parametrize("resource", [SECRETS, PERSISTENT_VOLUME_CLAIMS], ids=str)
async def test_keys_and_volume_go_only_by_operator_or_with_namespace(cluster: Cluster, resource: Resource) -> None:
    assert await deletion(cluster.admin, resource, "keys", namespace=LIVING)
    # A delete of the whole collection, as by `kubectl delete --all`.
    path = resource.path(namespace=LIVING)
    assert await refusal(lambda: cluster.admin.request("DELETE", path, params={"dryRun": "All"}))
    assert await deletion(cluster.controller, resource, "keys", namespace=LIVING) == ""
    assert await deletion(cluster.admin, resource, "plain", namespace=LIVING) == ""
    if resource is SECRETS:  # with --runtime=process the operator has no rights over claims
        assert await deletion(cluster.operator, resource, "keys", namespace=LIVING) == ""
