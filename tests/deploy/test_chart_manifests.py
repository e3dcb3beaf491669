"""What the chart renders: the same as its sources, accepted by a real API server, and restricted."""

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
    """A namespace that takes restricted pods only."""
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": RESTRICTED, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
    await kube.apply(json.dumps(body))
    await eventually(lambda: kube.names("serviceaccounts", "-n", RESTRICTED), lambda names: "default" in names)
    return RESTRICTED


@pytest.mark.usefixtures("monitoring")
async def test_the_api_server_accepts_everything(chart: Any, values_file: Path, kube: Kubectl) -> None:
    rendered = chart.render(values_file)
    printed = await kube.run(*DRY_RUN, "-f", "-", stdin=rendered.text)
    assert len(printed.splitlines()) == len(rendered.manifests)


async def test_every_pod_is_restricted(chart: Any, values_file: Path, kube: Kubectl, restricted: str) -> None:
    for owner, template in chart.render(values_file, tests=True).pod_templates().items():
        # Accounts and priorities are of this cluster; Pod Security does not look at them.
        spec = {**template["spec"]}
        for name in ("serviceAccountName", "priorityClassName"):
            spec.pop(name, None)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": restricted}, "spec": spec}
        stored = json.loads(
            await kube.run("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
        )
        assert stored["kind"] == "Pod", owner


async def test_a_pod_that_is_not_restricted_would_be_refused(chart: Any, kube: Kubectl, restricted: str) -> None:
    spec = chart.render().pod_templates()["StatefulSet/kplane-etcd"]["spec"]
    del spec["containers"][0]["securityContext"]["capabilities"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": restricted}, "spec": spec}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        await kube.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))


def test_pods_are_bounded_beyond_the_standard(chart: Any, values_file: Path) -> None:
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


def test_no_pod_but_the_operators_has_the_key_of_the_authority(chart: Any, values_file: Path) -> None:
    for owner, template in chart.render(values_file).pod_templates().items():
        for volume in template["spec"].get("volumes", ()):
            secret = volume.get("secret", {})
            if secret.get("secretName", "").endswith("-etcd-credentials"):
                assert {item["key"] for item in secret["items"]} == {"ca.crt", "client.crt", "client.key"}, owner


def test_the_crds_are_those_of_the_models(chart: Any) -> None:
    """`make generate` copies them."""
    copies = {path.name: path.read_text() for path in (chart.directory / "files" / "crds").iterdir()}
    directory = Path(__file__).parents[2] / "crds"
    assert copies == {path.name: path.read_text() for path in directory.glob("*.yaml")}


def test_the_crds_stay_when_the_release_goes(chart: Any) -> None:
    rendered = chart.render()
    for crd in crd_manifests():
        installed = rendered.one("CustomResourceDefinition", crd["metadata"]["name"])
        assert installed["spec"] == crd["spec"]
        assert installed["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_backups_stay_when_the_release_goes(chart: Any) -> None:
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
def test_rights_are_the_same_with_and_without_helm(chart: Any, plain: str, installed: str) -> None:
    roles = [
        item
        for item in (*rbac_manifests(pods=True), *gateway_manifests())
        if item["kind"] in {"Role", "ClusterRole"} and item["metadata"]["name"] == plain
    ]
    assert roles
    for role in roles:
        found = chart.render(settings=GATEWAY).one(role["kind"], installed)
        # The operator may bind the role of Secrets, which has another name.
        rules = json.loads(json.dumps(role["rules"]).replace("kplane-controlplane-operator", "kplane-operator"))
        assert found["rules"] == rules
        assert found["metadata"].get("namespace") == role["metadata"].get("namespace")


def test_control_planes_are_protected_alike_with_and_without_helm(chart: Any) -> None:
    plain = {item["kind"]: item for item in rbac_manifests() if "AdmissionPolicy" in item["kind"]}
    (installed,) = ({kind: chart.render().one(kind, "kplane-controlplanes") for kind in plain},)
    own = {"controlplane-operator": plain, "kplane-operator": installed}
    specs = [
        json.dumps({kind: item["spec"] for kind, item in found.items()}).replace(
            f"system:serviceaccount:kplane-system:{account}", "the operator"
        )
        for account, found in own.items()
    ]
    assert len(plain) == 2
    assert "the operator" in specs[0]
    assert specs[0] == specs[1]


def test_there_are_no_other_roles(chart: Any, values_file: Path) -> None:
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


def test_the_manifest_for_kubectl_is_up_to_date(chart: Any) -> None:
    """`make manifests` writes it."""
    directory = Path(__file__).parents[2] / "deploy"
    namespace = (directory / "rbac" / "namespace.yaml").read_text()
    installed = (directory / "install.yaml").read_text()
    command = ("template", "kplane", str(chart.directory), f"--namespace={chart.namespace}", "--no-hooks")
    assert installed == namespace + chart.helm(*command)
    assert next(yaml.safe_load_all(installed))["kind"] == "Namespace"
