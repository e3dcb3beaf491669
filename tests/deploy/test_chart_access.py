"""What the two identities may do on a cluster: by RBAC, and by the admission policy beyond it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from embedded.errors import KubectlFailed
from embedded.handle import Handle
from embedded.kubectl import Kubectl
from provider import ApiError, Client, ClusterConfig
from provider.providers.registration import REGISTRATIONS

pytestmark = pytest.mark.integration

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
    # A policy is in force some moments after it was written.
    async with asyncio.timeout(30):
        while not (
            await refusal(kube, "create", secret(FOREIGN))
            and await status_refusal(kube, "kplane-mcm", {"ready": False})
        ):
            pass
    yield
    await kube.run("delete", "-f", "-", "--wait=false", "--ignore-not-found", stdin=manifest)


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


EVENT_VERBS = ["get", "create", "patch"]

ALLOWED = [
    ("create", namespace("kplane-cp-new", **MARK, **RESTRICTED)),
    ("create", namespace("kplane-cpx-long-0123456789abcdef", **MARK, **RESTRICTED)),
    ("apply", namespace(TENANT, **MARK, **RESTRICTED, retained="true")),
    ("apply", unlabelled(**MARK, **RESTRICTED)),
    ("delete", namespace(TENANT)),
    ("create", secret(TENANT, "kube-apiserver-files")),
    ("delete", secret(TENANT)),
    ("create", deployment(TENANT)),
    ("create", service(TENANT)),
    ("create", role(TENANT)),
    ("create", secret("kplane-system", "kplane-etcd-server", type="Opaque")),
    ("create", secret("kplane-system", "kplane-etcd-credentials", type="Opaque")),
    ("create", role(OTHER, name="kplane-registration-4567")),
    ("delete", role(OTHER)),
    ("create", binding(OTHER)),
    ("create", event("default")),
    ("put", lease("kplane-system")),
    ("create", account(TENANT, "mcm-xyz765")),
    ("delete", account(TENANT)),
    ("create", binding(OTHER, user=ACCOUNT, home=TENANT)),
    ("create", cluster_role("kplane-registration-4567")),
    (
        "create",
        cluster_role("kplane-registration-4567", resources=["controlplaneregistrations/status"], verbs=["patch"]),
    ),
    ("delete", cluster_role()),
    ("create", cluster_binding()),
    ("create", role("default", apiGroups=[""], resources=["events"], resourceNames=None, verbs=EVENT_VERBS)),
]

DENIED = [
    ("create", deployment("default")),
    ("create", deployment("kube-system")),
    ("create", deployment("kplane-system")),
    # a namespace of control planes by its label only, or by its name only
    ("create", deployment(OTHER)),
    ("create", deployment(FOREIGN)),
    ("create", service("default")),
    ("create", secret("default")),
    ("apply", secret(OTHER, data={"key": "dmFsdWU="})),
    ("delete", secret(OTHER)),
    ("create", secret("kplane-system", "another")),
    ("create", secret("kplane-system", "kplane-etcd-server", type="example.org/other")),
    ("create", role(OTHER, name="another")),
    ("delete", role(OTHER, name="theirs")),
    ("create", role(OTHER, name="kplane-registration-4567", resourceNames=None)),
    ("create", role(OTHER, name="kplane-registration-4567", verbs=["get", "patch"])),
    ("create", role(TENANT, resources=["secrets", "pods"])),
    ("create", binding(OTHER, user="another")),
    ("create", binding(OTHER, name="another")),
    ("create", namespace("innocent", **MARK, **RESTRICTED)),
    ("create", namespace("kplane-cp-lax", **MARK)),
    ("create", namespace("kplane-cp-unmarked", **RESTRICTED)),
    ("apply", namespace(TENANT, **MARK, **{"pod-security.kubernetes.io/enforce": "privileged"})),
    ("apply", namespace(FOREIGN, **MARK, **RESTRICTED)),
    ("delete", namespace(FOREIGN)),
    ("delete", namespace(OTHER)),
    ("delete", unlabelled()),
    ("apply", unlabelled(**RESTRICTED)),
    ("delete", namespace("kplane-system")),
    ("create", account("default")),
    ("create", account("kplane-system")),
    ("create", binding(OTHER, user=ACCOUNT)),
    ("create", binding(OTHER, user="default", home=TENANT)),
    ("create", role("default", name="events", resources=["events"], resourceNames=None, verbs=EVENT_VERBS)),
    ("create", cluster_role("another")),
    ("create", cluster_role("kplane-registration-4567", resourceNames=None)),
    ("create", cluster_role("kplane-registration-4567", resources=["controlplanes"])),
    ("create", cluster_role("kplane-registration-4567", apiGroups=[""], resources=["secrets"], verbs=["get"])),
    ("create", cluster_binding("another", role="kplane-registration-0123")),
    ("create", cluster_binding(role="kplane-mcm")),
    ("create", cluster_binding(user="default")),
    ("create", cluster_binding(namespace="kplane-system")),
    ("delete", cluster_role("kplane-mcm")),
    ("delete", cluster_binding("kplane-mcm")),
]


def describe(body: Any) -> str:
    if isinstance(body, str):
        return body
    metadata = body["metadata"]
    return f"{body['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


@pytest.mark.usefixtures("installed")
async def test_the_operator_writes_what_it_has_to(kube: Kubectl) -> None:
    refused = {f"{verb} {describe(body)}": await refusal(kube, verb, body) for verb, body in ALLOWED}
    assert {what: why for what, why in refused.items() if why} == {}


@pytest.mark.usefixtures("installed")
async def test_the_operators_token_is_worth_nothing_elsewhere(kube: Kubectl) -> None:
    """RBAC alone would allow all of this, as it cannot tell namespaces by their names."""
    refused = [(f"{verb} {describe(body)}", await refusal(kube, verb, body)) for verb, body in DENIED]
    assert [what for what, why in refused if "ValidatingAdmissionPolicy 'kplane-operator'" not in why] == []


@pytest.mark.usefixtures("installed")
async def test_a_refusal_says_what_is_wrong(kube: Kubectl) -> None:
    why = await refusal(kube, "create", deployment("default"))
    assert (
        "the operator of kplane writes to namespaces of control planes, and not deployments in namespace default" in why
    )


@pytest.mark.usefixtures("installed")
async def test_nobody_else_is_held_up(kube: Kubectl) -> None:
    await kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(deployment("default")))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["kplane-mcm", ACCOUNT])
async def test_mcm_tells_of_its_instance(kube: Kubectl, name: str) -> None:
    said: list[dict[str, Any]] = [
        {"instance": {"controlPlaneUID": "uid-1", "version": "v1.36.3"}, "conditions": [READY, RUNNING]},
        {"conditions": [RUNNING, READY]},
        {"conditions": [READY], "instance": None},
        {"instance": {}},
    ]
    assert [await status_refusal(kube, name, status) for status in said] == [""] * len(said)


@pytest.mark.usefixtures("installed")
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
async def test_mcms_token_changes_nothing_that_the_operator_decides(kube: Kubectl, status: dict[str, Any]) -> None:
    """By its server's address and by its Secret the controllers of a tenant could be led to somebody else."""
    for name in ("kplane-mcm", ACCOUNT):
        assert "ValidatingAdmissionPolicy 'kplane-mcm'" in await status_refusal(kube, name, status)


@pytest.mark.usefixtures("installed")
async def test_others_write_the_status_of_registrations_as_before(kube: Kubectl) -> None:
    assert await status_refusal(kube, "kplane-operator", {"ready": False}) == ""


async def may(kube: Kubectl, user: str, questions: Sequence[tuple[str, str, str]]) -> list[str]:
    """Which of (verb, resource, namespace) RBAC allows. A resource may be "group/resource" and "resource:name"."""
    reviews = []
    for verb, what, where in questions:
        kind, _, name = what.partition(":")
        group, _, resource = kind.rpartition("/")
        resource, _, subresource = resource.partition(".")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": where,
            "name": name,
        }
        groups = ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:kplane-system"]
        reviews.append(
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
            }
        )
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    answers = (await kube.run("create", "-f", "-", "-o", 'jsonpath={.status.allowed}{"\\n"}', stdin=listed)).split()
    return [
        f"{verb} {what} in {where or 'the cluster'}"
        for (verb, what, where), answer in zip(questions, answers, strict=True)
        if answer == "true"
    ]


def told(questions: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"{verb} {what} in {where or 'the cluster'}" for verb, what, where in questions]


OURS = "controlplane.kplane.dev"

LEASE = "coordination.k8s.io/leases:kplane-operator"

OPERATOR_MAY = [
    *[(verb, f"{OURS}/controlplanes", "") for verb in ("get", "list", "watch", "patch")],
    ("patch", f"{OURS}/controlplanes.status", ""),
    ("create", f"{OURS}/controlplaneendpoints", ""),
    ("create", f"{OURS}/controlplaneregistrations", ""),
    *[(verb, "namespaces", "") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[(verb, "secrets", TENANT) for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[
        (verb, resource, TENANT)
        for resource in (
            "apps/deployments",
            "apps/statefulsets",
            "services",
            "networking.k8s.io/networkpolicies",
            "policy/poddisruptionbudgets",
        )
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ],
    *[(verb, "persistentvolumeclaims", TENANT) for verb in ("get", "list", "watch", "delete")],
    *[(verb, "pods", TENANT) for verb in ("get", "list", "watch")],
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", TENANT)
        for resource in ("roles", "rolebindings")
        for verb in ("list", "create", "patch", "delete")
    ],
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", "")
        for resource in ("clusterroles", "clusterrolebindings")
        for verb in ("list", "create", "patch", "delete")
    ],
    *[(verb, "serviceaccounts", TENANT) for verb in ("create", "patch", "delete")],
    *[(verb, "events", "default") for verb in ("get", "create", "patch")],
    *[(verb, "configmaps", "kplane-system") for verb in ("list", "watch")],
    *[(verb, LEASE, "kplane-system") for verb in ("get", "watch", "create", "update")],
]

OPERATOR_MAY_NOT = [
    ("create", f"{OURS}/controlplanes", ""),
    ("update", f"{OURS}/controlplanes", ""),
    ("delete", f"{OURS}/controlplanes", ""),
    ("patch", f"{OURS}/controlplaneclasses", ""),
    ("delete", f"{OURS}/controlplaneendpoints", ""),
    ("patch", f"{OURS}/controlplaneregistrations", ""),
    ("delete", f"{OURS}/controlplaneregistrations", ""),
    ("create", "pods", TENANT),
    ("delete", "pods", TENANT),
    ("create", "pods.exec", TENANT),
    ("get", "pods.log", TENANT),
    ("create", "pods.ephemeralcontainers", TENANT),
    ("create", "serviceaccounts.token", TENANT),
    *[(verb, "serviceaccounts", TENANT) for verb in ("get", "list", "update", "impersonate")],
    ("create", "persistentvolumeclaims", TENANT),
    ("create", "apps/daemonsets", TENANT),
    ("create", "batch/jobs", TENANT),
    *[(verb, "configmaps", TENANT) for verb in ("get", "list", "watch")],
    *[(verb, "configmaps", "kplane-system") for verb in ("create", "patch", "delete")],
    ("create", "events", TENANT),
    *[(verb, LEASE, "kplane-system") for verb in ("list", "patch", "delete")],
    *[(verb, "coordination.k8s.io/leases:another", "kplane-system") for verb in ("get", "create", "update")],
    ("update", LEASE, TENANT),
    ("list", "nodes", ""),
    ("deletecollection", "secrets", TENANT),
    ("deletecollection", "namespaces", ""),
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", where)
        for resource, where in (("clusterroles", ""), ("roles", TENANT))
        for verb in ("get", "update", "escalate", "bind")
    ],
    ("impersonate", "users", ""),
    ("impersonate", "serviceaccounts", "kplane-system"),
    ("delete", "admissionregistration.k8s.io/validatingadmissionpolicies:kplane-operator", ""),
    ("patch", "admissionregistration.k8s.io/validatingadmissionpolicybindings:kplane-operator", ""),
    ("patch", "apiextensions.k8s.io/customresourcedefinitions", ""),
]

LEASES = "coordination.k8s.io/leases"

MCM_MAY = [
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("list", "watch")],
    ("patch", f"{OURS}/controlplaneregistrations.status", ""),
    *[(verb, "events", "default") for verb in ("get", "create", "patch")],
    *[(verb, LEASES, "kplane-system") for verb in ("list", "watch")],
    *[
        (verb, f"{LEASES}:{name}", "kplane-system")
        for name in ("kplane-mcm-shard-0", "kplane-mcm-shard-15", "kplane-mcm-peer-kplane-mcm-0")
        for verb in ("get", "create", "update", "patch", "delete")
    ],
]

MCM_MAY_NOT = [
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("get", "create", "patch", "update", "delete")],
    *[(verb, f"{OURS}/controlplaneendpoints", "") for verb in ("get", "list", "watch")],
    ("update", f"{OURS}/controlplaneregistrations.status", ""),
    *[("patch", f"{OURS}/{kind}.status", "") for kind in ("controlplanes", "controlplaneendpoints")],
    ("get", f"{OURS}/controlplanes", ""),
    *[(verb, "secrets", where) for where in (TENANT, "kplane-system", "") for verb in ("get", "list", "watch")],
    ("create", "secrets", TENANT),
    ("list", "namespaces", ""),
    ("list", "pods", "kplane-system"),
    *[("create", "events", where) for where in (TENANT, "kplane-system", "")],
    *[(verb, "events", "default") for verb in ("list", "delete", "update")],
    *[(verb, f"{LEASES}:kplane-operator", "kplane-system") for verb in ("get", "update", "patch", "delete")],
    *[("create", LEASES, where) for where in (TENANT, "kplane-system", "kube-system", "")],
]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("user", "yes", "no"),
    [(OPERATOR, OPERATOR_MAY, OPERATOR_MAY_NOT), (MCM, MCM_MAY, MCM_MAY_NOT)],
    ids=["operator", "mcm"],
)
async def test_rights_are_those_that_are_needed(
    user: str, yes: list[tuple[str, str, str]], no: list[tuple[str, str, str]], kube: Kubectl
) -> None:
    assert await may(kube, user, [*yes, *no]) == told(yes)
