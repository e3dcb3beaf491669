"""Rendered manifests: equal to their sources, accepted by a real API server, and restricted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.embedded.errors import KubectlFailed
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.embedded.manifests import crd_manifests, gateway_manifests, rbac_manifests
from tests.monitoring import crds

pytestmark = pytest.mark.integration

RESTRICTED = "pod-security-restricted"
GATEWAY = {
    "gateway.enabled": True,
    "gateway.url": "https://api.example.org",
    "gateway.certificateSecret": "gateway-certificate",
}
DRY_RUN = (
    "apply",
    "--server-side",
    "--force-conflicts",
    "--field-manager=helm",
    "--dry-run=server",
    "--validate=strict",
)


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


@pytest.fixture
async def monitoring(kube: Kubectl, eventually: Any) -> AsyncIterator[None]:
    """The kinds ServiceMonitor and PrometheusRule."""
    kinds = crds()
    names = [f"crd/{crd['metadata']['name']}" for crd in kinds]
    await kube.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds}))
    await kube.run("wait", "--for=condition=Established", *names)
    for plural in (crd["spec"]["names"]["plural"] for crd in kinds):
        await eventually(lambda plural=plural: kube.items(plural, "-A"), lambda found: found == [])
    yield
    await kube.run("delete", *names)


@pytest.fixture
async def restricted(kube: Kubectl, eventually: Any) -> str:
    """Namespace that accepts only restricted pods."""
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": RESTRICTED, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    await kube.apply(json.dumps(body))
    await eventually(lambda: kube.names("serviceaccounts", "-n", RESTRICTED), lambda names: "default" in names)
    return RESTRICTED


@pytest.mark.usefixtures("monitoring")
async def test_api_server_accepts_every_rendered_manifest(chart: Any, values_file: Path, kube: Kubectl) -> None:
    rendered = chart.render(values_file)
    printed = await kube.run(*DRY_RUN, "-f", "-", stdin=rendered.text)
    assert len(printed.splitlines()) == len(rendered.manifests)


async def test_pods_meet_the_restricted_pod_security_standard(
    chart: Any, values_file: Path, kube: Kubectl, restricted: str
) -> None:
    for owner, template in chart.render(values_file, tests=True).pod_templates().items():
        # The cluster lacks the service accounts and priority classes. Pod Security ignores both fields.
        spec = {**template["spec"]}
        for name in ("serviceAccountName", "priorityClassName"):
            spec.pop(name, None)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": restricted}, "spec": spec}
        stored = json.loads(
            await kube.run("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
        )
        assert stored["kind"] == "Pod", owner


async def test_pod_with_capabilities_is_refused_by_pod_security(chart: Any, kube: Kubectl, restricted: str) -> None:
    spec = chart.render().pod_templates()["StatefulSet/kplane-etcd"]["spec"]
    del spec["containers"][0]["securityContext"]["capabilities"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": restricted}, "spec": spec}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        await kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))


def test_pods_have_read_only_root_and_requests_and_size_limits(chart: Any, values_file: Path) -> None:
    for owner, template in chart.render(values_file, tests=True).pod_templates().items():
        spec = template["spec"]
        operators = owner.endswith(("-operator", "-mcm", "-test"))
        hooks = owner.endswith("-before-uninstall") or (
            "-recipient=" in str(spec) and "backup" in str(spec["containers"])
        )
        assert spec["automountServiceAccountToken"] is (operators or hooks), owner
        assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 65532
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, owner
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, owner
        for volume in spec.get("volumes", ()):
            assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": None}), (owner, volume["name"])


def test_pods_mount_etcd_credentials_without_the_ca_key(chart: Any, values_file: Path) -> None:
    for owner, template in chart.render(values_file).pod_templates().items():
        for volume in template["spec"].get("volumes", ()):
            secret = volume.get("secret", {})
            if secret.get("secretName", "").endswith("-etcd-credentials"):
                assert {item["key"] for item in secret["items"]} == {"ca.crt", "client.crt", "client.key"}, owner


def test_crds_of_the_chart_equal_the_generated_crds(chart: Any) -> None:
    """`make generate` copies the CRDs."""
    copies = {path.name: path.read_text() for path in (chart.directory / "files" / "crds").iterdir()}
    directory = Path(__file__).parents[2] / "crds"
    assert copies == {path.name: path.read_text() for path in directory.glob("*.yaml")}


def test_crds_are_kept_after_uninstallation(chart: Any) -> None:
    rendered = chart.render()
    for crd in crd_manifests():
        installed = rendered.one("CustomResourceDefinition", crd["metadata"]["name"])
        assert installed["spec"] == crd["spec"]
        assert installed["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_backup_volume_is_kept_after_uninstallation(chart: Any) -> None:
    claim = chart.render().one("PersistentVolumeClaim", "kplane-etcd-backup")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    ("plain", "installed"),
    [
        ("kplane-controlplane-operator", "kplane-operator"),
        ("kplane-controlplane-operator-pods", "kplane-operator-pods"),
        ("kplane-controlplane-operator-secrets", "kplane-operator-secrets"),
        ("kplane-controlplane-operator-secrets-reader", "kplane-operator-secrets-reader"),
        ("kplane-mcm", "kplane-mcm"),
        ("kplane-mcm-events", "kplane-mcm-events"),
        ("kplane-controlplane-operator-addons", "kplane-operator-addons"),
        ("kplane-controlplane-operator-events", "kplane-operator-events"),
        ("kplane-controlplane-operator-lease", "kplane-operator-lease"),
        ("kplane-gateway", "kplane-gateway"),
    ],
)
def test_rbac_rules_of_chart_and_plain_manifests_agree(chart: Any, plain: str, installed: str) -> None:
    roles = [
        item
        for item in (*rbac_manifests(pods=True), *gateway_manifests())
        if item["kind"] in {"Role", "ClusterRole"} and item["metadata"]["name"] == plain
    ]
    assert roles
    for role in roles:
        rendered = chart.render(settings=GATEWAY).one(role["kind"], installed)
        # The operator may bind the role of Secrets, which has another name.
        rules = json.loads(json.dumps(role["rules"]).replace("kplane-controlplane-operator", "kplane-operator"))
        assert rendered["rules"] == rules
        assert rendered["metadata"].get("namespace") == role["metadata"].get("namespace")


def test_admission_policies_of_chart_and_plain_manifests_agree(chart: Any) -> None:
    plain = {item["kind"]: item for item in rbac_manifests() if "AdmissionPolicy" in item["kind"]}
    (installed,) = ({kind: chart.render().one(kind, "kplane-controlplanes") for kind in plain},)
    own = {"controlplane-operator": plain, "kplane-operator": installed}
    specs = [
        json.dumps({kind: item["spec"] for kind, item in policies.items()}).replace(
            f"system:serviceaccount:kplane-system:{account}", "the operator"
        )
        for account, policies in own.items()
    ]
    assert len(plain) == 2
    assert "the operator" in specs[0]
    assert specs[0] == specs[1]


def test_chart_creates_no_unlisted_roles_and_bindings(chart: Any, values_file: Path) -> None:
    rendered = chart.render(values_file, tests=True)
    roles = rendered.names("ClusterRole") + rendered.names("Role")
    endpoints = "--cluster-source=controlplaneendpoint" in rendered.text
    gateway = ["kplane-gateway"] if "--gateway-url=" in rendered.text else []
    keys = ["kplane-before-upgrade", "kplane-etcd-backup"] if "--recipient=" in rendered.text else []
    assert [name.removeprefix("my-") for name in roles] == [
        "kplane-before-uninstall",
        *keys,
        *gateway,
        "kplane-mcm",
        "kplane-operator",
        "kplane-operator-pods",
        "kplane-operator-secrets",
        "kplane-operator-secrets-reader",
        *keys,
        *gateway,
        "kplane-mcm-events",
        "kplane-mcm-leases",
        *(["kplane-mcm-secrets"] if endpoints else []),
        "kplane-operator-addons",
        "kplane-operator-events",
        "kplane-operator-lease",
        *(["kplane-operator-leases"] if gateway else []),
    ]
    of_secrets = [name for name in rendered.names("ClusterRole") if "-operator-secrets" in name]
    assert rendered.names("ClusterRoleBinding") == [
        name for name in rendered.names("ClusterRole") if name not in of_secrets
    ]
    by_namespace = set(rendered.names("RoleBinding")) - set(rendered.names("Role"))
    opened = {of_secrets[1]} if "everything-on" in values_file.name else set()
    assert by_namespace == {of_secrets[0]} | opened
    assert set(rendered.names("Role")) < set(rendered.names("RoleBinding"))


def test_install_manifest_is_up_to_date(chart: Any) -> None:
    """`make manifests` writes the manifest."""
    directory = Path(__file__).parents[2] / "deploy"
    namespace = (directory / "rbac" / "namespace.yaml").read_text()
    installed = (directory / "install.yaml").read_text()
    command = ("template", "kplane", str(chart.directory), f"--namespace={chart.namespace}", "--no-hooks")
    assert installed == namespace + chart.helm(*command)
    assert next(yaml.safe_load_all(installed))["kind"] == "Namespace"
