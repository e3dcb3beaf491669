"""The identities of the chart on a cluster, with its RBAC and its admission policies in force."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from kplane.api.names import OPERATOR_LEASE, OPERATOR_LEASE_NAMESPACE, SCHEDULED_FOR_ANNOTATION
from kplane.controlplane_operator.controlplanes.retained_data import POD_SECURITY
from kplane.controlplane_operator.controlplanes.service_monitors import SERVICE_MONITORS
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.embedded.errors import KubectlFailed
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.provider import ApiError, Client, ClusterConfig, NotFound
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from kplane.provider.providers.kplane.registration import REGISTRATIONS

RELEASE = "kplane-access"
"""A separate release: deploy/rbac is installed on the shared cluster, and has the names of the release kplane."""
OPERATOR_ACCOUNT = f"{RELEASE}-operator"
MCM_ACCOUNT = f"{RELEASE}-mcm"
GATEWAY_USER = f"system:serviceaccount:kplane-system:{RELEASE}-gateway"
OPERATOR = f"system:serviceaccount:kplane-system:{OPERATOR_ACCOUNT}"
MCM = f"system:serviceaccount:kplane-system:{MCM_ACCOUNT}"

TENANT = "kplane-cp-access"
FOREIGN = "kplane-cp-access-foreign"
OTHER = "access-other"
SECRETS_ROLE = f"{OPERATOR_ACCOUNT}-secrets"
UNBOUND = "kplane-cp-access-unbound"
"""A control plane's namespace without a RoleBinding of the operator."""
GRANTED = "kplane-cp-access-granted"
GRANTED_BY_OWNER = "access-granted-by-owner"
MARK = {"controlplane.kplane.dev/name": "access"}

GATEWAY = "access-gateway"
"""Namespace in which the operator writes Secrets for a gateway."""
GRANTED_GATEWAY = "access-granted-gateway"

SCRAPED = {"metrics.serviceMonitor.enabled": True, "networkPolicy.metricsFrom": [{"podSelector": {}}]}
RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
POLICIES = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

RESOURCES = {
    resource.kind: resource
    for resource in (
        NAMESPACES,
        SECRETS,
        DEPLOYMENTS,
        SERVICES,
        SERVICE_ACCOUNTS,
        EVENTS,
        LEASES,
        ROLES,
        ROLE_BINDINGS,
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        REGISTRATIONS,
        SERVICE_MONITORS,
        CONTROL_PLANE_SNAPSHOTS,
    )
}


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def unlabelled(**labels: str) -> dict[str, Any]:
    """Return a control plane's namespace without its label."""
    body = namespace("kplane-cp-access-unlabelled", **labels)
    body["metadata"]["annotations"] = {"controlplane.kplane.dev/uid": "a-uid"}
    return body


def secret(namespace: str, name: str = "a-secret", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, **fields}


def for_gateway(namespace: str, name: str = "controlplane-access", *, kind: str = "ControlPlane") -> dict[str, Any]:
    """Return the Secret of a control plane that the operator writes for a gateway."""
    body = secret(namespace, name, type="Opaque")
    owner = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": kind, "name": "access", "uid": "a-uid"}
    body["metadata"]["ownerReferences"] = [owner]
    return body


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


def service_monitor(namespace: str) -> dict[str, Any]:
    metadata = {"name": "kube-apiserver", "namespace": namespace}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": metadata, "spec": {}}


def lease(namespace: str, name: str = OPERATOR_LEASE) -> dict[str, Any]:
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
"""ServiceAccount of an mcm of mode Dedicated."""


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
    namespace: str, name: str = "kplane-registration-0123", *, user: str = MCM_ACCOUNT, home: str = "kplane-system"
) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kplane-registration-0123"},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": home}],
    }


def own_binding(
    namespace: str,
    name: str = SECRETS_ROLE,
    *,
    role: str = SECRETS_ROLE,
    user: str = OPERATOR_ACCOUNT,
    home: str = "kplane-system",
    kind: str = "RoleBinding",
) -> dict[str, Any]:
    """Return the RoleBinding that gives the operator access to the Secrets of a namespace."""
    metadata = {"name": name} if kind == "ClusterRoleBinding" else {"name": name, "namespace": namespace}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": home}],
    }


def registration(*, finalizers: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "access", **({} if finalizers is None else {"finalizers": finalizers})}
    body = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlaneRegistration", "metadata": metadata}
    return {**body, **({"spec": spec} if spec else {})}


def snapshot(name: str = "access", **metadata: Any) -> dict[str, Any]:
    body = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlaneSnapshot"}
    return {**body, "metadata": {"name": name, **metadata}, "spec": {"controlPlaneRef": {"name": "access"}}}


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


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


@contextlib.asynccontextmanager
async def applied(kube: Kubectl, objects: list[dict[str, Any]]) -> AsyncIterator[None]:
    """Keep objects in the cluster until the block ends. Namespaces may be deleted later."""
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    await kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
    try:
        yield
    finally:
        async with asyncio.timeout(60):
            # The policies refuse the deletion of the namespaces until the API server has observed their own deletion.
            while not await deleted(kube, manifest):
                pass


async def deleted(kube: Kubectl, manifest: str) -> bool:
    try:
        await kube.run("delete", "-f", "-", "--wait=false", "--ignore-not-found", stdin=manifest)
    except KubectlFailed:
        return False
    return True


def parts(chart: Any, kinds: set[str], *, gateway: str) -> list[dict[str, Any]]:
    settings = SCRAPED | {
        "gateway.enabled": True,
        "gateway.url": "https://api.example.org",
        "gateway.certificateSecret": "gateway-certificate",
        "gateway.namespace": gateway,
    }
    return [item for item in chart.render(release=RELEASE, settings=settings).manifests if item["kind"] in kinds]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def granted(chart: Any, api_server: Handle) -> AsyncIterator[None]:
    """Apply the chart's RBAC, and the RoleBinding of the operator in the namespace of a control plane."""
    namespaces = [namespace(name) for name in (GRANTED, GRANTED_BY_OWNER, GRANTED_GATEWAY)]
    objects = [own_binding(GRANTED), opened(GRANTED_BY_OWNER)]
    async with (
        without_the_clusters_own(api_server.kubectl),
        applied(api_server.kubectl, [*namespaces, *parts(chart, RBAC, gateway=GRANTED_GATEWAY), *objects]),
    ):
        yield


def opened(name: str) -> dict[str, Any]:
    """Return the RoleBinding that the owner of a namespace creates."""
    return own_binding(name, f"{SECRETS_ROLE}-reader", role=f"{SECRETS_ROLE}-reader")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tokens(chart: Any, api_server: Handle) -> AsyncIterator[dict[str, str]]:
    """Enforce the chart's RBAC and admission policies, and create test namespaces. Return tokens of the accounts."""
    kube = api_server.kubectl
    namespaces = [
        namespace(GATEWAY),
        namespace(TENANT, **MARK, **POD_SECURITY),
        namespace(UNBOUND, **MARK, **POD_SECURITY),
        namespace(FOREIGN),
        namespace(OTHER, **MARK),
        unlabelled(),
    ]
    objects = [
        secret(UNBOUND),
        own_binding(TENANT),
        opened(OTHER),
        secret(OTHER),
        secret(TENANT),
        role(OTHER, name="theirs"),
        role(OTHER),
        account(TENANT),
        # The escalation check of RBAC allows the operator to bind this ClusterRole.
        cluster_role(),
        # These rights allow the account to write the status of the registration.
        cluster_role("test-dedicated", resources=["controlplaneregistrations/status"], verbs=["patch"]),
        cluster_binding("test-dedicated"),
        {
            "apiVersion": "controlplane.kplane.dev/v1alpha1",
            "kind": "ControlPlaneRegistration",
            "metadata": {"name": "access"},
            "spec": {"controlPlaneRef": {"name": "access"}, "services": ["Controllers"]},
        },
        snapshot(),
        snapshot("scheduled", annotations={SCHEDULED_FOR_ANNOTATION: "a-uid"}),
    ]
    rendered = parts(chart, RBAC | POLICIES, gateway=GATEWAY)
    async with without_the_clusters_own(kube), applied(kube, [*namespaces, *rendered, *objects]):
        await kube.run(*STATUS_PATCH, json.dumps({"status": RESOLVED}))
        token_by_account = {
            name: (await kube.run("create", "token", name, f"--namespace={home}")).strip()
            for name, home in (
                (OPERATOR_ACCOUNT, "kplane-system"),
                (MCM_ACCOUNT, "kplane-system"),
                (ACCOUNT, TENANT),
            )
        }
        async with acting(api_server) as operator, asyncio.timeout(120):
            while not await in_force(api_server, operator, token_by_account):
                pass
        yield token_by_account


@contextlib.asynccontextmanager
async def without_the_clusters_own(kube: Kubectl) -> AsyncIterator[None]:
    """Suspend the policy of the embedded cluster, which is for its own operator."""
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "kplane-controlplanes"},
        "spec": {"policyName": "kplane-controlplanes", "validationActions": ["Deny"]},
    }
    await kube.run("delete", "-f", "-", stdin=json.dumps(binding))
    try:
        yield
    finally:
        await kube.run("create", "-f", "-", stdin=json.dumps(binding))


def acting(api_server: Handle) -> Client:
    """Return a client that impersonates the operator."""
    admin = ClusterConfig.load(api_server.admin_kubeconfig)
    return Client(replace(admin, impersonation=Impersonation(OPERATOR)), field_manager="kplane")


@pytest.fixture
async def operator(api_server: Handle, tokens: dict[str, str]) -> AsyncIterator[Client]:
    async with acting(api_server) as client:
        yield client


async def in_force(api_server: Handle, operator: Client, tokens: dict[str, str]) -> bool:
    """Tell whether the API server enforces all RBAC and policies: every refusal must come from a policy."""
    if await refusal(operator, "put", lease(OPERATOR_LEASE_NAMESPACE)):
        return False
    refusals = [await refusal(operator, "create", deployment(FOREIGN))]
    refusals += [await status_refusal(api_server, tokens[name], {"ready": False}) for name in (MCM_ACCOUNT, ACCOUNT)]
    policies = (OPERATOR_ACCOUNT, MCM_ACCOUNT, MCM_ACCOUNT)
    return all(
        f"ValidatingAdmissionPolicy '{policy}'" in error for policy, error in zip(policies, refusals, strict=True)
    )


async def refusal(operator: Client, verb: str, body: dict[str, Any]) -> str:
    """Send a dry-run request as the operator. Return the error of the API server, or "" if it allows the request."""
    resource, metadata = RESOURCES[body["kind"]], body["metadata"]
    path = resource.path(None if verb == "create" else metadata["name"], namespace=metadata.get("namespace"))
    params: dict[str, Any] = {"dryRun": "All"}
    try:
        match verb:
            case "create":
                await operator.request("POST", path, body=body, params=params)
            case "apply":
                apply = {**params, "fieldManager": "kubectl", "force": True}
                await operator.request(
                    "PATCH", path, body=body, params=apply, content_type="application/apply-patch+yaml"
                )
            case "patch":
                await operator.request(
                    "PATCH", path, body=body, params=params, content_type="application/merge-patch+json"
                )
            case "put":
                # The operator sends PUT by name, and the object may be missing.
                with contextlib.suppress(NotFound):
                    body = await operator.get(resource, metadata["name"], namespace=metadata.get("namespace"))
                await operator.request("PUT", path, body=body, params=params)
            case "delete":
                await operator.request("DELETE", path, params=params)
            case _:
                raise AssertionError(verb)
    except ApiError as error:
        return str(error)
    return ""


async def status_refusal(api_server: Handle, token: str, status: dict[str, Any]) -> str:
    """Patch the status of the registration with a token. Return the error of the API server, or ""."""
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    bearer = ClusterConfig(server=config.server, ca_data=config.ca_data, token=token)
    async with Client(config, field_manager="kplane") as admin, Client(bearer, field_manager="kplane") as client:
        try:
            await client.patch(REGISTRATIONS, "access", {"status": status}, subresource="status")
        except ApiError as error:
            return str(error)
        finally:
            before = {"status": {"instance": None, **RESOLVED}}
            await admin.patch(REGISTRATIONS, "access", before, subresource="status")
    return ""
