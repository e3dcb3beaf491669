"""RBAC of mcm for each source of control planes."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from kplane.embedded.handle import Handle
from kplane.mcm.placement.sharding import SHARDS
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers.kplane import ENDPOINTS, EndpointProvider, SecretTemplate

pytestmark = pytest.mark.integration

ENDPOINT = {"mcm.source.kind": "controlplaneendpoint"}
TEMPLATE = "mcm.source.kubeconfigSecretTemplate"
SCOPE = "mcm.source.namespaceScope"
OURS = "controlplane.kplane.dev"
FOLLOWING = {f"{OURS}/controlplaneendpoints": {"list", "watch"}}
SECRET = {"/secrets": {"get", "watch"}}
EVENTS = {"events.k8s.io/events": {"get", "create", "patch"}}
RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(api_server: Handle) -> AsyncIterator[str]:
    """Namespace with the Secret of endpoint `a`, and with a second Secret."""
    namespace = f"fleet-{uuid.uuid4().hex[:6]}"
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as admin:
        await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
        document = json.dumps(ClusterConfig("https://127.0.0.1:1", token="t").to_kubeconfig())
        for name in (f"{namespace}-a", "another"):
            data = {"kubeconfig": base64.b64encode(document.encode()).decode()}
            await admin.create(SECRETS, {"metadata": {"name": name, "namespace": namespace}, "data": data})
        await admin.create(
            ENDPOINTS, {"metadata": {"name": f"{namespace}-a"}, "spec": {"endpoint": "https://127.0.0.1:1"}}
        )
        yield namespace
        await admin.delete(ENDPOINTS, f"{namespace}-a")
        await admin.delete(NAMESPACES, namespace)


async def rights(client: Client, namespace: str) -> dict[str, set[str]]:
    """Return the verbs of an identity in a namespace by `group/resource[:name]`, without rights of all users."""
    verbs: dict[str, set[str]] = {}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body=body)
    for rule in answer["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            if group in ("authorization.k8s.io", "authentication.k8s.io"):
                continue
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", ("",)):
                    target = f"{group}/{resource}:{name}".removesuffix(":")
                    verbs.setdefault(target, set()).update(rule["verbs"])
    return verbs


def sharing(account: str) -> dict[str, set[str]]:
    """Return the rights to Leases by which pods of mcm share control planes. They are the same for each source."""
    leases = "coordination.k8s.io/leases"
    verbs = {leases: {"list", "watch"}, f"apps/statefulsets:{account}": {"get"}}
    for number in range(SHARDS):
        for name in (f"{account}-shard-{number}", f"{account}-peer-{account}-{number}"):
            verbs[f"{leases}:{name}"] = {"get", "create", "update", "patch", "delete"}
    return verbs


@pytest.mark.parametrize(
    ("template", "scope", "there", "elsewhere"),
    [
        ("{name}", "fleet", FOLLOWING | SECRET, FOLLOWING),
        ("fleet/{name}", "", FOLLOWING | SECRET, FOLLOWING),
        ("fleet/fleet-a", "", FOLLOWING | {"/secrets:fleet-a": {"get", "watch"}}, FOLLOWING),
        ("{name}/{name}-a", "", FOLLOWING | SECRET, FOLLOWING | SECRET),
    ],
)
async def test_mcm_of_endpoints_reads_only_secrets_of_the_template(
    chart: Any,
    api_server: Handle,
    fleet: str,
    eventually: Callable[..., Any],
    template: str,
    scope: str,
    there: dict[str, set[str]],
    elsewhere: dict[str, set[str]],
) -> None:
    template, scope = template.replace("fleet", fleet), scope.replace("fleet", fleet)
    release = f"s{uuid.uuid4().hex[:6]}"
    rendered = chart.render(release=release, settings={**ENDPOINT, TEMPLATE: template, SCOPE: scope})
    account = f"{release}-kplane-mcm"
    parts = [
        item for item in rendered.manifests if item["kind"] in RBAC and item["metadata"]["name"].startswith(account)
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": parts})
    kube = api_server.kubectl
    await kube.run("apply", "--server-side", "-f", "-", stdin=listed)
    try:
        token = await kube.run("create", "token", account, "--namespace=kplane-system")
        server = ClusterConfig.load(api_server.admin_kubeconfig)
        config = ClusterConfig(server.server, ca_data=server.ca_data, token=token.strip())
        async with Client(config, field_manager="kplane") as client:
            everywhere = replaced(elsewhere, fleet)
            expected = {
                fleet: replaced(there, fleet),
                "kplane-system": everywhere | sharing(account),
                "default": everywhere | EVENTS,  # namespace of Events about endpoints, which are cluster-scoped
            }
            for namespace, wanted in expected.items():
                # The API server enforces a change of RBAC after a short delay.
                await eventually(
                    lambda namespace=namespace: rights(client, namespace), lambda found, wanted=wanted: found == wanted
                )
            if template.startswith("{name}/"):
                return  # the Secret would be in a namespace that has the endpoint's name
            provider = EndpointProvider(client, secrets=SecretTemplate(template, namespace_scope=scope or None))
            clusters = Clusters()
            task = asyncio.create_task(provider.run(clusters))
            try:
                await eventually(clusters.names, lambda names: names == [f"{fleet}-a"])
            finally:
                task.cancel()
                await asyncio.wait([task])
                await clusters.aclose()
    finally:
        await kube.run("delete", "-f", "-", "--wait=false", stdin=listed)


def replaced(rights: dict[str, set[str]], fleet: str) -> dict[str, set[str]]:
    return {target.replace("fleet", fleet): verbs for target, verbs in rights.items()}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (ENDPOINT, "kubeconfigSecretTemplate is empty"),
        ({**ENDPOINT, TEMPLATE: "{name}"}, "names no namespace"),
        ({TEMPLATE: "fleet/{name}"}, "are for mcm.source.kind controlplaneendpoint"),
        ({SCOPE: "fleet"}, "are for mcm.source.kind controlplaneendpoint"),
    ],
)
def test_chart_refuses_contradictory_settings_of_the_source(chart: Any, settings: dict[str, str], reason: str) -> None:
    with pytest.raises(chart.refused, match=reason):
        chart.render(settings=settings)
