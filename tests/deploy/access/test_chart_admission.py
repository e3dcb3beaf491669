"""Admission policies of the chart: allowed requests of operator and mcm, and requests that only a policy denies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from kplane.controlplane_operator.controlplanes.retained_data import POD_SECURITY
from kplane.controlplane_operator.gateway_trust import AUTHORITY, CERTIFICATE
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.provider import Client
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import Forbidden
from tests.monitoring import crds

from .conftest import (
    ACCOUNT,
    FOREIGN,
    GATEWAY,
    MARK,
    MCM_ACCOUNT,
    OPERATOR_ACCOUNT,
    OTHER,
    READY,
    RELEASE,
    RUNNING,
    SECRET,
    SECRETS_ROLE,
    TENANT,
    UNBOUND,
    account,
    applied,
    binding,
    cluster_binding,
    cluster_role,
    condition,
    deployment,
    event,
    for_gateway,
    lease,
    namespace,
    own_binding,
    refusal,
    registration,
    role,
    secret,
    service,
    service_monitor,
    snapshot,
    status_refusal,
    unlabelled,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("chart-access")]

EVENT_VERBS = ["get", "create", "patch"]

ALLOWED = [
    ("create", namespace("kplane-cp-new", **MARK, **POD_SECURITY)),
    ("create", namespace("kplane-cpx-long-0123456789abcdef", **MARK, **POD_SECURITY)),
    ("apply", namespace(TENANT, **MARK, **POD_SECURITY, retained="true")),
    ("apply", unlabelled(**MARK, **POD_SECURITY)),
    ("delete", namespace(TENANT)),
    ("create", secret(TENANT, "kube-apiserver-files")),
    ("delete", secret(TENANT)),
    ("create", deployment(TENANT)),
    ("create", service(TENANT)),
    ("create", role(TENANT)),
    ("create", secret("kplane-system", f"{RELEASE}-etcd-server", type="Opaque")),
    ("create", secret("kplane-system", f"{RELEASE}-etcd-credentials", type="Opaque")),
    ("create", secret("kplane-system", "kplane-saved-keys-a-uid", type="Opaque")),
    ("create", secret("kplane-system", "kplane-snapshot-a-0", type="Opaque")),
    ("apply", secret("kplane-system", AUTHORITY)),
    ("apply", secret("kplane-system", CERTIFICATE)),
    ("create", for_gateway(GATEWAY)),
    ("apply", for_gateway(GATEWAY, "cp-long-0123456789abcdef")),
    ("create", role(OTHER, name="kplane-registration-4567")),
    ("delete", role(OTHER)),
    ("create", binding(OTHER)),
    ("apply", own_binding(TENANT)),
    ("delete", own_binding(TENANT)),
    ("create", event("default")),
    ("put", lease("kube-system")),
    ("create", account(TENANT, "mcm-xyz765")),
    ("delete", account(TENANT)),
    ("create", binding(OTHER, user=ACCOUNT, home=TENANT)),
    ("create", cluster_role("kplane-registration-4567")),
    (
        "create",
        cluster_role("kplane-registration-4567", resources=["controlplaneregistrations/status"], verbs=["patch"]),
    ),
    ("delete", cluster_role()),
    ("patch", registration(finalizers=["controlplane.kplane.dev/finalizer"])),
    ("create", snapshot("another")),
    ("patch", snapshot(finalizers=["controlplane.kplane.dev/finalizer"])),
    ("delete", snapshot("scheduled")),
    ("create", cluster_binding()),
    *[
        ("create", role("default", apiGroups=[group], resources=["events"], resourceNames=None, verbs=EVENT_VERBS))
        for group in ("", "events.k8s.io")
    ],
]

DENIED = [
    ("create", deployment("default")),
    ("create", deployment("kube-system")),
    ("create", deployment("kplane-system")),
    # namespaces that have only the label, or only the name, of a control plane's namespace
    ("create", deployment(OTHER)),
    ("create", deployment(FOREIGN)),
    ("create", service("default")),
    ("create", secret("kplane-system", "another")),
    ("create", secret("kplane-system", f"{RELEASE}-etcd-server", type="example.org/other")),
    ("create", secret("kplane-system", "kplane-saved-keys-a-uid", type="example.org/other")),
    ("create", secret("kplane-system", "kplane-snapshot-a-0", type="example.org/other")),
    ("create", secret("kplane-system", CERTIFICATE, type="example.org/other")),
    # for a gateway: other namespace, other name, no owner, other owner, other type, other kind of object
    ("create", for_gateway("kplane-system")),
    ("create", for_gateway(GATEWAY, "another")),
    ("create", secret(GATEWAY, "controlplane-access", type="Opaque")),
    ("create", for_gateway(GATEWAY, kind="Deployment")),
    ("create", for_gateway(GATEWAY) | {"type": "example.org/other"}),
    ("create", deployment(GATEWAY)),
    ("create", own_binding(GATEWAY)),
    ("create", role(OTHER, name="another")),
    ("delete", role(OTHER, name="theirs")),
    ("create", role(OTHER, name="kplane-registration-4567", resourceNames=None)),
    ("create", role(OTHER, name="kplane-registration-4567", verbs=["get", "list"])),
    ("create", role(TENANT, resources=["secrets", "pods"])),
    ("create", binding(OTHER, user="another")),
    ("create", binding(OTHER, name="another")),
    # binding of the operator to Secrets: other namespaces, all namespaces, other subjects, other names
    ("create", own_binding("default")),
    ("create", own_binding("kube-system")),
    ("create", own_binding("kplane-system", "another")),
    ("create", own_binding(OTHER)),
    ("create", own_binding(FOREIGN)),
    ("create", own_binding("", kind="ClusterRoleBinding")),
    ("create", own_binding("", "kplane-registration-4567", kind="ClusterRoleBinding")),
    ("apply", own_binding(TENANT, user="default")),
    ("apply", own_binding(TENANT, user=MCM_ACCOUNT)),
    ("apply", own_binding(TENANT, home=TENANT)),
    ("create", own_binding(TENANT, "kplane-registration-4567")),
    ("create", own_binding(TENANT, "another")),
    ("create", namespace("innocent", **MARK, **POD_SECURITY)),
    ("create", namespace("kplane-cp-lax", **MARK)),
    ("create", namespace("kplane-cp-unmarked", **POD_SECURITY)),
    ("apply", namespace(TENANT, **MARK, **POD_SECURITY | {"pod-security.kubernetes.io/enforce": "privileged"})),
    ("apply", namespace(TENANT, **MARK, **POD_SECURITY | {"pod-security.kubernetes.io/enforce-version": "v1.0"})),
    ("create", namespace("kplane-cp-unpinned", **MARK, **{"pod-security.kubernetes.io/enforce": "restricted"})),
    ("apply", namespace(FOREIGN, **MARK, **POD_SECURITY)),
    ("delete", namespace(FOREIGN)),
    ("delete", namespace(OTHER)),
    ("delete", unlabelled()),
    ("apply", unlabelled(**POD_SECURITY)),
    ("delete", namespace("kplane-system")),
    ("create", account("default")),
    ("create", account("kplane-system")),
    ("create", binding(OTHER, user=ACCOUNT)),
    ("create", binding(OTHER, user="default", home=TENANT)),
    ("create", role("default", name="events", resources=["events"], resourceNames=None, verbs=EVENT_VERBS)),
    ("create", cluster_role("another")),
    ("create", cluster_role("kplane-registration-4567", resourceNames=None)),
    ("create", cluster_role("kplane-registration-4567", resources=["controlplanes"])),
    ("create", cluster_binding("another", role="kplane-registration-0123")),
    ("create", cluster_binding(role=MCM_ACCOUNT)),
    ("create", cluster_binding(user="default")),
    ("create", cluster_binding(namespace="kplane-system")),
    ("delete", snapshot()),
    ("patch", registration(services=["Scheduler"])),
    ("patch", registration(mode="Dedicated")),
    ("delete", cluster_role(MCM_ACCOUNT)),
    ("delete", cluster_binding(MCM_ACCOUNT)),
]

# RBAC refuses these requests before any policy. The operator cannot grant mcm access to Secrets that it cannot read.
WITHOUT_RIGHT = [
    ("create", secret("default")),
    ("apply", secret(OTHER, data={"key": "dmFsdWU="})),
    ("delete", secret(OTHER)),
    ("create", secret("default", "kplane-saved-keys-a-uid", type="Opaque")),
    ("create", secret(FOREIGN)),
    ("create", role("default", name="kplane-registration-4567")),
    ("create", role("kube-system", name="kplane-registration-4567")),
    *[
        ("create", role(where, apiGroups=groups, resources=["events"], resourceNames=None, verbs=EVENT_VERBS))
        for where, groups in ((OTHER, ["events.k8s.io"]), ("default", ["events.k8s.io", "apps"]))
    ],
    ("create", role(OTHER, name="kplane-registration-4567", verbs=["get", "patch"])),
    ("create", cluster_role("kplane-registration-4567", apiGroups=[""], resources=["secrets"], verbs=["get"])),
    ("create", own_binding(TENANT, "kplane-registration-4567", role="cluster-admin")),
    ("create", own_binding(TENANT, role="cluster-admin")),
    ("create", own_binding("default", role="admin")),
    ("create", own_binding("", "kplane-registration-4567", role="cluster-admin", kind="ClusterRoleBinding")),
]


def describe(body: Any) -> str:
    if isinstance(body, str):
        return body
    metadata = body["metadata"]
    return f"{body['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


async def test_admission_policy_allows_requests_of_operator(operator: Client) -> None:
    refused = {f"{verb} {describe(body)}": await refusal(operator, verb, body) for verb, body in ALLOWED}
    assert {request: error for request, error in refused.items() if error} == {}


async def test_admission_policy_denies_operator_requests_elsewhere(operator: Client) -> None:
    """RBAC alone would allow all of these requests, because it cannot match names of namespaces."""
    refused = [(f"{verb} {describe(body)}", await refusal(operator, verb, body)) for verb, body in DENIED]
    assert [
        request for request, error in refused if f"ValidatingAdmissionPolicy '{OPERATOR_ACCOUNT}'" not in error
    ] == []


async def test_rbac_denies_operator_secrets_of_other_namespaces(operator: Client) -> None:
    """Neither own rights nor rights that the operator grants to itself or to mcm give access."""
    refused = [(f"{verb} {describe(body)}", await refusal(operator, verb, body)) for verb, body in WITHOUT_RIGHT]
    assert [
        request for request, error in refused if "forbidden" not in error or "ValidatingAdmissionPolicy" in error
    ] == []
    for place in ("default", "kube-system", FOREIGN):
        with pytest.raises(Forbidden):
            await operator.list(SECRETS, namespace=place)
        with pytest.raises(Forbidden):
            await operator.get(SECRETS, "any", namespace=place)
    assert (await operator.get(SECRETS, "a-secret", namespace=TENANT))["metadata"]["name"] == "a-secret"


async def test_operator_binds_itself_to_secrets_of_a_namespace(operator: Client, eventually: Any) -> None:
    with pytest.raises(Forbidden):
        await operator.get(SECRETS, "a-secret", namespace=UNBOUND)
    access = SecretAccess(operator, stores=Stores(), namespace="kplane-system", role=SECRETS_ROLE)
    task = asyncio.create_task(access.run(listed=asyncio.Event()))
    try:

        async def opened() -> bool:
            # `open` waits for a few seconds, and raises. The operator retries.
            with contextlib.suppress(ConditionError):
                await access.open(UNBOUND)
                return True
            return False

        await eventually(opened)
        assert (await operator.get(SECRETS, "a-secret", namespace=UNBOUND))["metadata"]["name"] == "a-secret"
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_operator_writes_service_monitors_for_control_planes_only(
    kube: Kubectl, operator: Client, eventually: Any
) -> None:
    kinds = crds()
    async with applied(kube, kinds):
        names = [f"crd/{crd['metadata']['name']}" for crd in kinds]
        await kube.run("wait", "--for=condition=Established", *names)
        await eventually(lambda: kube.items("servicemonitors", "-A"), lambda found: found == [])
        assert await refusal(operator, "apply", service_monitor(TENANT)) == ""
        for place in (FOREIGN, OTHER, "default", "kplane-system"):
            error = await refusal(operator, "apply", service_monitor(place))
            assert f"ValidatingAdmissionPolicy '{OPERATOR_ACCOUNT}'" in error


async def test_refusal_message_names_resource_and_namespace(operator: Client) -> None:
    error = await refusal(operator, "create", deployment("default"))
    assert (
        "the operator of kplane writes to namespaces of control planes, and not deployments in namespace default"
        in error
    )


@pytest.mark.usefixtures("tokens")
async def test_admission_policy_ignores_requests_of_other_users(kube: Kubectl) -> None:
    await kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(deployment("default")))


@pytest.mark.parametrize("name", [MCM_ACCOUNT, ACCOUNT])
async def test_mcm_may_write_instance_and_condition_running(
    api_server: Handle, tokens: dict[str, str], name: str
) -> None:
    statuses: list[dict[str, Any]] = [
        {"instance": {"controlPlaneUID": "uid-1", "version": "v1.36.3"}, "conditions": [READY, RUNNING]},
        {"conditions": [RUNNING, READY]},
        {"conditions": [READY], "instance": None},
        {"instance": {}},
    ]
    assert [await status_refusal(api_server, tokens[name], status) for status in statuses] == [""] * len(statuses)


@pytest.mark.parametrize(
    "status",
    [
        {"ready": False},
        {"ready": None},
        {"resolvedEndpoint": "https://192.0.2.1"},
        {"resolvedKubeconfigSecretRef": SECRET | {"name": "another"}},
        {"resolvedControllersSecretRef": SECRET},
        {"controlPlaneUID": "uid-2"},
        {"services": ["Scheduler"]},
        {"conditions": [RUNNING]},
        {"conditions": [condition("Ready", "False", "Resolved"), RUNNING]},
        {"conditions": [READY, RUNNING, condition("Supported", "False", "NotSupported")]},
        {"conditions": None},
    ],
    ids=lambda status: json.dumps(status)[:60],
)
async def test_mcm_may_not_write_status_fields_of_the_operator(
    api_server: Handle, tokens: dict[str, str], status: dict[str, Any]
) -> None:
    """A changed endpoint or Secret could direct the controllers of a tenant to another server."""
    for name in (MCM_ACCOUNT, ACCOUNT):
        error = await status_refusal(api_server, tokens[name], status)
        assert f"ValidatingAdmissionPolicy '{MCM_ACCOUNT}'" in error


async def test_operator_may_write_status_of_registrations(api_server: Handle, tokens: dict[str, str]) -> None:
    assert await status_refusal(api_server, tokens[OPERATOR_ACCOUNT], {"ready": False}) == ""
