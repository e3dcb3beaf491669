"""RBAC of the service accounts of operator, mcm and gateway."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kplane.embedded.kubectl import Kubectl

from .conftest import GATEWAY_USER, GRANTED_BY_OWNER, MCM, MCM_ACCOUNT, OPERATOR, OPERATOR_ACCOUNT, SECRETS_ROLE
from .conftest import GRANTED as TENANT
from .conftest import GRANTED_GATEWAY as GATEWAY

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("chart-access"), pytest.mark.usefixtures("granted")]


async def may(kube: Kubectl, user: str, questions: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return each (verb, resource, namespace) that RBAC allows. Forms: "group/resource", "resource:name"."""
    reviews = []
    for verb, target, scope in questions:
        kind, _, name = target.partition(":")
        group, _, resource = kind.rpartition("/")
        resource, _, subresource = resource.partition(".")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": scope,
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
        f"{verb} {target} in {scope or 'the cluster'}"
        for (verb, target, scope), answer in zip(questions, answers, strict=True)
        if answer == "true"
    ]


def told(questions: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"{verb} {target} in {scope or 'the cluster'}" for verb, target, scope in questions]


OURS = "controlplane.kplane.dev"

LEASE = "coordination.k8s.io/leases:kplane-operator"

EVENTS = "events.k8s.io/events"

MONITORS = "monitoring.coreos.com/servicemonitors"

OPERATOR_MAY = [
    *[(verb, f"{OURS}/controlplanes", "") for verb in ("get", "list", "watch", "patch")],
    ("patch", f"{OURS}/controlplanes.status", ""),
    ("create", f"{OURS}/controlplaneendpoints", ""),
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("create", "patch")],
    *[(verb, f"{OURS}/controlplanesnapshots", "") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    ("patch", f"{OURS}/controlplanesnapshots.status", ""),
    *[(verb, "namespaces", "") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    # by RoleBindings in the namespaces
    *[(verb, "secrets", TENANT) for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[(verb, "secrets", "kplane-system") for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[(verb, "secrets", GATEWAY) for verb in ("get", "list", "watch", "create", "patch", "delete")],
    *[(verb, "secrets", GRANTED_BY_OWNER) for verb in ("get", "list", "watch")],
    *[(verb, "secrets:control-plane-authorities", "kplane-cp-another") for verb in ("get", "patch")],
    ("bind", f"rbac.authorization.k8s.io/clusterroles:{SECRETS_ROLE}", TENANT),
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
    *[(verb, "persistentvolumeclaims", TENANT) for verb in ("get", "list", "watch", "patch", "delete")],
    *[(verb, MONITORS, TENANT) for verb in ("create", "patch")],
    *[(verb, "pods", TENANT) for verb in ("get", "list", "watch")],
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", TENANT)
        for resource in ("roles", "rolebindings")
        for verb in ("list", "watch", "create", "patch", "delete")
    ],
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", "")
        for resource in ("clusterroles", "clusterrolebindings")
        for verb in ("list", "watch", "create", "patch", "delete")
    ],
    *[(verb, "serviceaccounts", TENANT) for verb in ("list", "watch", "create", "patch", "delete")],
    *[(verb, events, "default") for events in ("events", EVENTS) for verb in ("get", "create", "patch")],
    *[(verb, "configmaps", "kplane-system") for verb in ("list", "watch")],
    *[(verb, LEASE, "kube-system") for verb in ("get", "watch", "create", "update")],
]

OPERATOR_MAY_NOT = [
    ("create", f"{OURS}/controlplanes", ""),
    ("update", f"{OURS}/controlplanes", ""),
    ("delete", f"{OURS}/controlplanes", ""),
    ("patch", f"{OURS}/controlplaneclasses", ""),
    ("delete", f"{OURS}/controlplaneendpoints", ""),
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("update", "delete")],
    *[(verb, f"{OURS}/controlplanesnapshots", "") for verb in ("update", "deletecollection")],
    ("create", "pods", TENANT),
    ("delete", "pods", TENANT),
    ("create", "pods.exec", TENANT),
    ("get", "pods.log", TENANT),
    ("create", "pods.ephemeralcontainers", TENANT),
    ("create", "serviceaccounts.token", TENANT),
    *[(verb, "serviceaccounts", TENANT) for verb in ("get", "update", "impersonate")],
    *[(verb, "persistentvolumeclaims", TENANT) for verb in ("create", "update", "deletecollection")],
    *[(verb, MONITORS, TENANT) for verb in ("get", "list", "update", "delete")],
    ("create", "monitoring.coreos.com/podmonitors", TENANT),
    ("create", "apps/daemonsets", TENANT),
    ("create", "batch/jobs", TENANT),
    *[(verb, "configmaps", TENANT) for verb in ("get", "list", "watch")],
    *[(verb, "configmaps", "kplane-system") for verb in ("create", "patch", "delete")],
    ("create", "events", TENANT),
    *[(verb, LEASE, "kube-system") for verb in ("list", "patch", "delete")],
    *[(verb, "coordination.k8s.io/leases:another", "kube-system") for verb in ("get", "create", "update")],
    *[("update", LEASE, where) for where in (TENANT, "kplane-system")],
    ("list", "nodes", ""),
    *[
        (verb, "secrets", where)
        for where in ("default", "kube-system", "kplane-cp-another", "")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ],
    *[(verb, "secrets", GRANTED_BY_OWNER) for verb in ("create", "patch", "delete")],
    *[("delete", "secrets:control-plane-authorities", where) for where in ("default", "kplane-cp-another")],
    *[("bind", f"rbac.authorization.k8s.io/clusterroles:{name}", "") for name in ("cluster-admin", "admin", "view")],
    ("bind", f"rbac.authorization.k8s.io/clusterroles:{SECRETS_ROLE}-reader", TENANT),
    *[("deletecollection", "secrets", where) for where in (TENANT, GATEWAY)],
    *[(verb, "configmaps", GATEWAY) for verb in ("get", "list", "watch", "create")],
    ("create", "pods", GATEWAY),
    ("deletecollection", "namespaces", ""),
    *[
        (verb, f"rbac.authorization.k8s.io/{resource}", where)
        for resource, where in (("clusterroles", ""), ("roles", TENANT))
        for verb in ("get", "update", "escalate", "bind")
    ],
    ("impersonate", "users", ""),
    ("impersonate", "serviceaccounts", "kplane-system"),
    ("delete", f"admissionregistration.k8s.io/validatingadmissionpolicies:{OPERATOR_ACCOUNT}", ""),
    ("patch", f"admissionregistration.k8s.io/validatingadmissionpolicybindings:{OPERATOR_ACCOUNT}", ""),
    ("patch", "apiextensions.k8s.io/customresourcedefinitions", ""),
]

LEASES = "coordination.k8s.io/leases"

MCM_MAY = [
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("list", "watch")],
    ("patch", f"{OURS}/controlplaneregistrations.status", ""),
    *[(verb, EVENTS, "default") for verb in ("get", "create", "patch")],
    *[(verb, LEASES, "kplane-system") for verb in ("list", "watch")],
    *[
        (verb, f"{LEASES}:{name}", "kplane-system")
        for name in (f"{MCM_ACCOUNT}-shard-0", f"{MCM_ACCOUNT}-shard-15", f"{MCM_ACCOUNT}-peer-{MCM_ACCOUNT}-0")
        for verb in ("get", "create", "update", "patch", "delete")
    ],
]

MCM_MAY_NOT = [
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("get", "create", "patch", "update", "delete")],
    *[(verb, f"{OURS}/controlplaneendpoints", "") for verb in ("get", "list", "watch")],
    ("update", f"{OURS}/controlplaneregistrations.status", ""),
    *[("patch", f"{OURS}/{kind}.status", "") for kind in ("controlplanes", "controlplaneendpoints")],
    ("get", f"{OURS}/controlplanes", ""),
    *[
        (verb, "secrets", where)
        for where in (TENANT, "kplane-system", GATEWAY, "")
        for verb in ("get", "list", "watch")
    ],
    ("create", "secrets", TENANT),
    ("list", "namespaces", ""),
    ("list", "pods", "kplane-system"),
    *[("create", EVENTS, where) for where in (TENANT, "kplane-system", "")],
    *[(verb, EVENTS, "default") for verb in ("list", "delete", "update")],
    *[(verb, "events", "default") for verb in ("get", "create", "patch")],
    *[(verb, LEASE, "kube-system") for verb in ("get", "update", "patch", "delete")],
    *[("create", LEASES, where) for where in (TENANT, "kplane-system", "kube-system", "")],
]


GATEWAY_MAY = [
    *[(verb, f"{OURS}/controlplanes", "") for verb in ("list", "watch", "patch")],
    *[(verb, "secrets", GATEWAY) for verb in ("list", "watch")],
]

GATEWAY_MAY_NOT = [
    *[(verb, f"{OURS}/controlplanes", "") for verb in ("get", "create", "update", "delete")],
    ("patch", f"{OURS}/controlplanes.status", ""),
    *[(verb, f"{OURS}/controlplaneregistrations", "") for verb in ("get", "list", "watch")],
    *[(verb, "secrets", GATEWAY) for verb in ("get", "create", "patch", "update", "delete", "deletecollection")],
    *[
        (verb, "secrets", where)
        for where in (TENANT, "kplane-system", "default", "")
        for verb in ("get", "list", "watch")
    ],
    *[(verb, "configmaps", where) for where in (GATEWAY, "kplane-system") for verb in ("get", "list")],
    *[(verb, "events", where) for where in (GATEWAY, "default") for verb in ("create", "patch")],
    ("create", "serviceaccounts.token", "kplane-system"),
    ("impersonate", "users", ""),
]


@pytest.mark.parametrize(
    ("user", "yes", "no"),
    [
        (OPERATOR, OPERATOR_MAY, OPERATOR_MAY_NOT),
        (MCM, MCM_MAY, MCM_MAY_NOT),
        (GATEWAY_USER, GATEWAY_MAY, GATEWAY_MAY_NOT),
    ],
    ids=["operator", "mcm", "gateway"],
)
async def test_service_accounts_have_exactly_the_listed_rights(
    user: str, yes: list[tuple[str, str, str]], no: list[tuple[str, str, str]], kube: Kubectl, eventually: Any
) -> None:
    # The API server enforces a change of RBAC after a short delay.
    await eventually(lambda: may(kube, user, yes), lambda allowed: allowed == told(yes))
    assert await may(kube, user, [*yes, *no]) == told(yes)
