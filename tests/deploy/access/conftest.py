"""The identities of the chart on a cluster, with its RBAC and its admission policies in force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from embedded.errors import KubectlFailed
from embedded.handle import Handle
from embedded.kubectl import Kubectl
from provider import ApiError, Client, ClusterConfig
from provider.providers.registration import REGISTRATIONS

OPERATOR = "system:serviceaccount:kplane-system:kplane-operator"
MCM = "system:serviceaccount:kplane-system:kplane-mcm"

TENANT = "kplane-cp-access"
FOREIGN = "kplane-cp-foreign"
OTHER = "access-other"
MARK = {"controlplane.kplane.dev/name": "access"}
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def unlabelled(**labels: str) -> dict[str, Any]:
    """A control plane's namespace of which somebody took the label off."""
    found = namespace("kplane-cp-unlabelled", **labels)
    found["metadata"]["annotations"] = {"controlplane.kplane.dev/uid": "a-uid"}
    return found


def secret(namespace: str, name: str = "a-secret", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, **fields}


def deployment(namespace: str) -> dict[str, Any]:
    labels = {"app": "access"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "access", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": pod},
    }


def service(namespace: str) -> dict[str, Any]:
    metadata = {"name": "access", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 6443}]}}


def lease(namespace: str, name: str = "kplane-operator") -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
    }


def event(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "access", "namespace": namespace},
        "involvedObject": {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlane", "name": "access"},
    }


def role(namespace: str, name: str = "kplane-registration-0123", **rule: Any) -> dict[str, Any]:
    default = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a-secret"], "verbs": ["get", "watch"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [{key: value for key, value in {**default, **rule}.items() if value is not None}],
    }


ACCOUNT = "mcm-abc234"
"""Of an mcm of mode Dedicated."""


def account(namespace: str, name: str = ACCOUNT) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def cluster_role(name: str = "kplane-registration-0123", **rule: Any) -> dict[str, Any]:
    default = {
        "apiGroups": ["controlplane.kplane.dev"],
        "resources": ["controlplaneregistrations"],
        "resourceNames": ["access"],
        "verbs": ["get", "list", "watch"],
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{key: value for key, value in {**default, **rule}.items() if value is not None}],
    }


def cluster_binding(
    name: str = "kplane-registration-0123", *, role: str | None = None, user: str = ACCOUNT, namespace: str = TENANT
) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role or name},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
    }


def binding(
    namespace: str, name: str = "kplane-registration-0123", *, user: str = "kplane-mcm", home: str = "kplane-system"
) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kplane-registration-0123"},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": home}],
    }


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(chart: Any, api_server: Handle) -> AsyncIterator[None]:
    """RBAC and the admission policy of the chart, in force, and namespaces to try them on."""
    kube = api_server.kubectl
    parts = [item for item in chart.render().manifests if item["kind"] in KINDS]
    objects = [
        namespace(TENANT, **MARK, **RESTRICTED),
        namespace(FOREIGN),
        namespace(OTHER, **MARK),
        unlabelled(),
        secret(OTHER),
        secret(TENANT),
        role(OTHER, name="theirs"),
        role(OTHER),
        account(TENANT),
        # So that the escalation check of RBAC lets the operator bind it.
        cluster_role(),
        # It writes the status of the registration by these rights.
        cluster_role("test-dedicated", resources=["controlplaneregistrations/status"], verbs=["patch"]),
        cluster_binding("test-dedicated"),
        {
            "apiVersion": "controlplane.kplane.dev/v1alpha1",
            "kind": "ControlPlaneRegistration",
            "metadata": {"name": "access"},
            "spec": {"controlPlaneRef": {"name": "access"}, "services": ["Controllers"]},
        },
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": [*parts, *objects]}
    manifest = json.dumps(listed)
    await kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
    await kube.run(*STATUS_PATCH, json.dumps({"status": RESOLVED}))
    try:
        async with asyncio.timeout(120):
            while not await in_force(kube):
                pass
        yield
    finally:
        await kube.run("delete", "-f", "-", "--wait", "--timeout=120s", "--ignore-not-found", stdin=manifest)


async def in_force(kube: Kubectl) -> bool:
    """Tell whether the API server has seen all that was written: who may write at all is held up by a policy only."""
    if await refusal(kube, "put", lease("kplane-system")):
        return False
    told = [await refusal(kube, "create", secret(FOREIGN))]
    told += [await status_refusal(kube, name, {"ready": False}) for name in ("kplane-mcm", ACCOUNT)]
    policies = ("kplane-operator", "kplane-mcm", "kplane-mcm")
    return all(f"ValidatingAdmissionPolicy '{policy}'" in why for policy, why in zip(policies, told, strict=True))


async def refusal(kube: Kubectl, verb: str, body: dict[str, Any]) -> str:
    """Do it as the operator, without effect; what the API server says against it, and nothing where it is allowed."""
    match verb:
        case "create":
            args = ["create", "-f", "-"]
        case "apply":
            args = ["apply", "--server-side", "-f", "-"]
        case "put":
            # As the operator does: by its name, whether it is there or not.
            where = body["metadata"]
            group = f"/apis/{body['apiVersion']}/namespaces/{where['namespace']}"
            args = ["replace", f"--raw={group}/leases/{where['name']}?dryRun=All", "-f", "-"]
        case _:
            args = [verb, "-f", "-"]
    try:
        await kube.run(*args, "--dry-run=server", f"--as={OPERATOR}", stdin=json.dumps(body))
    except KubectlFailed as failure:
        return str(failure)
    return ""


STATUS_PATCH = ("patch", "controlplaneregistration", "access", "--subresource=status", "--type=merge", "-p")


def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
    since = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since}


READY = condition("Ready", "True", "Resolved")
RUNNING = condition("Running", "True", "InstanceRunning")
SECRET = {"name": "a-secret", "namespace": TENANT}
RESOLVED = {
    "ready": True,
    "controlPlaneUID": "uid-1",
    "resolvedEndpoint": "https://127.0.0.1:1",
    "resolvedKubeconfigSecretRef": SECRET,
    "conditions": [READY],
}


async def status_refusal(kube: Kubectl, name: str, status: dict[str, Any]) -> str:
    """Patch the status of the registration as a ServiceAccount; what the API server says against it."""
    token = await kube.run("create", "token", name, f"--namespace={TENANT if name == ACCOUNT else 'kplane-system'}")
    admin = ClusterConfig.load(kube.kubeconfig)
    async with Client(ClusterConfig(server=admin.server, ca_data=admin.ca_data, token=token.strip())) as client:
        try:
            await client.patch(REGISTRATIONS, "access", {"status": status}, subresource="status")
        except ApiError as error:
            return str(error)
        finally:
            await kube.run(*STATUS_PATCH, json.dumps({"status": {"instance": None, **RESOLVED}}))
    return ""
