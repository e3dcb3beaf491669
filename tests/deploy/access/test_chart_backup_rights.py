"""RBAC of backups with keys, and of the hook that runs before an uninstallation."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from kplane.controlplane_operator.backup.objects import collect
from kplane.controlplane_operator.uninstall import refusal
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.provider import Client, ClusterConfig
from kplane.provider.access.impersonation import Impersonation

from .conftest import RBAC, RELEASE, applied, namespace, secret, without_the_clusters_own
from .test_chart_rights import may, told

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("chart-access")]

HOME = "kplane-system"
TENANT = "kplane-cp-backup"
ETCD = f"{RELEASE}-etcd-credentials"
OURS = "controlplane.kplane.dev"
KEY = "age10xrvnm6h3640jymngzm8fnd7st5wgxk6xdjuezggfpw447dh4agqds5tkt"

BACKUP_MAY = [
    *[("list", f"{OURS}/{kind}", "") for kind in ("controlplanes", "controlplaneclasses", "controlplaneendpoints")],
    ("list", f"{OURS}/controlplaneregistrations", ""),
    ("list", "namespaces", ""),
    ("get", "secrets:control-plane-authorities", TENANT),
    ("get", f"secrets:{ETCD}", HOME),
]
BACKUP_MAY_NOT = [
    *[(verb, "secrets", where) for verb in ("get", "list", "watch") for where in (TENANT, HOME, "")],
    *[("get", f"secrets:{name}", TENANT) for name in ("controlplane-backup-kubeconfig", "control-plane-certificates")],
    *[(verb, "secrets:control-plane-authorities", TENANT) for verb in ("update", "patch", "delete", "create")],
    *[(verb, f"{OURS}/controlplanes", "") for verb in ("get", "watch", "create", "patch", "delete")],
    ("create", "pods", HOME),
]
QUESTION_MAY = [("list", f"{OURS}/controlplanes", "")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backups(chart: Any, api_server: Handle) -> AsyncIterator[None]:
    """Apply the chart's RBAC for backups with keys, and a control plane with its namespace and Secrets."""
    rendered = chart.render(release=RELEASE, settings={"etcd.backup.recipients": [KEY]})
    rights = [item for item in rendered.manifests if item["kind"] in RBAC]
    data = {"ca.key": base64.b64encode(b"secret").decode()}
    labels = {f"{OURS}/name": "backup", "pod-security.kubernetes.io/enforce": "restricted"}
    objects = [
        namespace(TENANT, **labels),
        secret(TENANT, "control-plane-authorities", data=data),
        secret(TENANT, "controlplane-backup-kubeconfig", data=data),
        secret(HOME, ETCD, data=data),
        {"apiVersion": f"{OURS}/v1alpha1", "kind": "ControlPlane", "metadata": {"name": "backup"}, "spec": {}},
    ]
    kube = api_server.kubectl
    async with without_the_clusters_own(kube), applied(kube, [*rights, *objects]):
        yield


def client(api_server: Handle, account: str) -> Client:
    user = f"system:serviceaccount:{HOME}:{RELEASE}-{account}"
    return Client(
        replace(ClusterConfig.load(api_server.admin_kubeconfig), impersonation=Impersonation(user)),
        field_manager="kplane",
    )


@pytest.mark.usefixtures("backups")
@pytest.mark.parametrize("account", ["etcd-backup", "before-upgrade"])
async def test_backup_reads_every_object_that_a_restore_needs(
    api_server: Handle, account: str, eventually: Any
) -> None:
    async with client(api_server, account) as reader:

        async def found() -> list[dict[str, Any]]:
            return [item async for item in collect(reader, namespace=HOME, etcd_secret=ETCD)]

        items = await eventually(found)
    named = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]): item for item in items}
    assert {
        ("Secret", HOME, ETCD),
        ("Namespace", None, TENANT),
        ("Secret", TENANT, "control-plane-authorities"),
        ("ControlPlane", None, "backup"),
    } <= named.keys()
    assert ("Secret", TENANT, "controlplane-backup-kubeconfig") not in named
    assert named["Secret", TENANT, "control-plane-authorities"]["data"]["ca.key"]
    assert all("managedFields" not in item["metadata"] and item["apiVersion"] for item in items)


@pytest.mark.usefixtures("backups")
@pytest.mark.parametrize(
    ("account", "yes", "no"),
    [
        ("etcd-backup", BACKUP_MAY, BACKUP_MAY_NOT),
        ("before-upgrade", BACKUP_MAY, BACKUP_MAY_NOT),
        ("before-uninstall", QUESTION_MAY, [*BACKUP_MAY[1:], *BACKUP_MAY_NOT]),
    ],
)
async def test_service_accounts_of_hooks_have_exactly_the_listed_rights(
    account: str, yes: list[tuple[str, str, str]], no: list[tuple[str, str, str]], api_server: Handle, eventually: Any
) -> None:
    kube: Kubectl = api_server.kubectl
    user = f"system:serviceaccount:{HOME}:{RELEASE}-{account}"
    await eventually(lambda: may(kube, user, yes), lambda allowed: allowed == told(yes))
    assert await may(kube, user, [*yes, *no]) == told(yes)


@pytest.mark.usefixtures("backups")
async def test_uninstall_is_refused_while_control_planes_exist(api_server: Handle, eventually: Any) -> None:
    async with client(api_server, "before-uninstall") as reader:
        message = await eventually(lambda: refusal(reader))
    assert message.startswith("kplane is not uninstalled, because there are control planes: ")
    assert "backup" in message
    assert "kubectl delete controlplanes --all" in message
    assert "helm uninstall with --no-hooks" in message
