"""Values of the chart: validation, and effect on the rendered manifests."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.binaries.upstreams import ETCD, KUBERNETES
from tools.chart_images import name_image

pytestmark = pytest.mark.integration

MAKEFILE = Path(__file__).parents[2] / "Makefile"

SWITCHES = {
    "crds.enabled": False,
    "etcd.backup.enabled": False,
    "etcd.restore.snapshot": "a.db",
    "admissionPolicy.enabled": False,
    "networkPolicy.enabled": False,
}
"""Values that everything-on.yaml leaves at the default, and another value for each."""

ELSEWHERE = {
    "etcd.enabled",
    "etcd.external.endpoint",
    "etcd.external.credentialsSecret",
    "etcd.restore.bumpRevision",
    "mcm.dedicated.resources",
}
"""Values that have an effect only in combination. Other tests cover them."""

THREE = {"etcd.replicas": 3, "etcd.backup.accessMode": "ReadWriteMany"}
RESTORE = {**THREE, "etcd.restore.snapshot": "a.db"}


def leaves(values: dict[str, Any], *, below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its default. A map that users fill is a single setting."""
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in {"resources", "labels"}:
            yield from leaves(value, below=f"{below}{name}.")
        else:
            yield f"{below}{name}", value


def find(values: dict[str, Any], name: str) -> Any:
    """Return a value by its dotted name, or None if it is unset."""
    value: Any = values
    for part in name.split("."):
        value = (value or {}).get(part)
    return value


def merged(values: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the values with a further value, by its dotted name."""
    section, _, rest = name.partition(".")
    return {**values, section: merged(values.get(section, {}), rest, value) if rest else value}


def test_lint_accepts_every_values_file(chart: Any, values_file: Path) -> None:
    assert "0 chart(s) failed" in chart.helm("lint", "--strict", str(chart.directory), f"--values={values_file}")


def test_each_value_changes_the_rendered_chart(chart: Any, everything_on: Path, tmp_path: Path) -> None:
    """Starts with all values set, and resets each value to its default."""
    file_values = yaml.safe_load(everything_on.read_text())
    full = chart.render(everything_on).text
    ineffective = []
    for name, default in leaves(chart.values):
        if name in ELSEWHERE:
            continue
        assert name in SWITCHES or find(file_values, name) not in (None, default), f"everything-on.yaml lacks {name}"
        file = tmp_path / "values.yaml"
        file.write_text(json.dumps(merged(file_values, name, SWITCHES.get(name, default))))
        try:
            same = chart.render(file).text == full
        except chart.refused as refused:
            same = name not in str(refused)
        if same:
            ineffective.append(name)
    assert ineffective == []


def test_operator_flags_name_the_external_etcd(chart: Any) -> None:
    external = {"endpoint": "https://etcd.example.org:2379", "credentialsSecret": "root"}
    rendered = chart.render(settings={"etcd.enabled": False, "etcd.external": external})
    pod = rendered.one("Deployment", "kplane-operator")["spec"]["template"]["spec"]
    assert "--shared-etcd-endpoint=https://etcd.example.org:2379" in pod["containers"][0]["args"]
    (credentials,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "shared-etcd"]
    assert credentials["secretName"] == "root"
    assert rendered.names("StatefulSet") == ["kplane-mcm"]
    assert rendered.names("CronJob") == []


def test_operator_mounts_credentials_of_each_data_store(chart: Any) -> None:
    stores = [
        {"name": name, "endpoint": f"https://{name}:2379", "credentialsSecret": f"of-{name}"} for name in ("b", "c")
    ]
    deployment = chart.render(settings={"etcd.dataStores": stores}).one("Deployment", "kplane-operator")
    pod = deployment["spec"]["template"]["spec"]
    (operator,) = pod["containers"]
    assert {"--data-store=b=https://b:2379", "--data-store=c=https://c:2379"} <= set(operator["args"])
    (directory,) = [item.partition("=")[2] for item in operator["args"] if item.startswith("--data-store-credentials=")]
    mounted = {entry["name"]: entry["mountPath"] for entry in operator["volumeMounts"]}
    secrets = {mounted[entry["name"]]: entry["secret"]["secretName"] for entry in pod["volumes"] if "secret" in entry}
    assert secrets == {f"{directory}/b": "of-b", f"{directory}/c": "of-c"}
    with pytest.raises(chart.refused, match=r"etcd\.dataStores has two of name b"):
        chart.render(settings={"etcd.dataStores": [stores[0], stores[0]]})


def test_restore_jobs_differ_only_in_member_and_peer_url(chart: Any) -> None:
    """Members with different revisions cannot form an etcd."""
    environments = list(restores(chart, {"etcd.restore.bumpRevision": 2_000_000_000}).values())
    assert [environment.pop("MEMBER") for environment in environments] == [f"kplane-etcd-{i}" for i in range(3)]
    assert len({environment.pop("PEER_URL") for environment in environments}) == 3
    assert environments[0]["BUMP_REVISION"] == "2000000000"
    assert environments[0] == environments[1] == environments[2]


def restores(chart: Any, settings: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the environments of the Jobs that restore three members, by name of the Job."""
    manifests = chart.render(settings={**RESTORE, **settings}).manifests
    jobs = [item for item in manifests if item["kind"] == "Job" and "-etcd-restore-" in item["metadata"]["name"]]
    return {
        job["metadata"]["name"]: {
            entry["name"]: entry["value"] for entry in job["spec"]["template"]["spec"]["containers"][0]["env"]
        }
        for job in jobs
    }


def test_retried_restore_has_new_jobs_and_the_same_environment(chart: Any) -> None:
    """Jobs are immutable. The script does not restore a member twice for the same digest."""
    first = restores(chart, {})
    retry = restores(chart, {"etcd.tolerations": [{"operator": "Exists"}], "operator.image.tag": "v9"})
    assert first.keys() & retry.keys() == set()
    assert list(first.values()) == list(retry.values())


@pytest.mark.parametrize("other", [{"etcd.restore.bumpRevision": 2_000_000_000}, {"etcd.restore.snapshot": "b.db"}])
def test_changed_restore_has_new_jobs_digest_and_token(chart: Any, other: dict[str, Any]) -> None:
    first, second = restores(chart, {}), restores(chart, other)
    assert first.keys() & second.keys() == set()
    for name in ("DIGEST", "CLUSTER_TOKEN"):
        (first_value,) = {environment[name] for environment in first.values()}
        (second_value,) = {environment[name] for environment in second.values()}
        assert first_value != second_value


def test_new_chart_version_leaves_spec_of_etcd_unchanged(chart: Any, tmp_path: Path) -> None:
    """Replacing a single member interrupts all virtual control planes."""
    newer = replace(chart, directory=tmp_path / "kplane")
    shutil.copytree(chart.directory, newer.directory)
    about = newer.directory / "Chart.yaml"
    about.write_text(json.dumps({**yaml.safe_load(about.read_text()), "version": "9.9.9", "appVersion": "9.9.9"}))
    old, new = (version.render().one("StatefulSet", "kplane-etcd") for version in (chart, newer))
    assert old["metadata"]["labels"] != new["metadata"]["labels"]
    assert old["spec"] == new["spec"]


def test_restore_scales_workloads_to_zero_and_suspends_backups(chart: Any) -> None:
    rendered = chart.render(settings=RESTORE)
    workloads = [item for item in rendered.manifests if item["kind"] in {"Deployment", "StatefulSet"}]
    assert {item["metadata"]["name"]: item["spec"]["replicas"] for item in workloads} == {
        "kplane-operator": 0,
        "kplane-mcm": 0,
        "kplane-etcd": 0,
    }
    assert rendered.one("CronJob", "kplane-etcd-backup")["spec"]["suspend"] is True


@pytest.mark.parametrize(("component", "kind"), [("operator", "Deployment"), ("mcm", "StatefulSet")])
def test_several_replicas_have_spread_constraints_and_a_budget(chart: Any, component: str, kind: str) -> None:
    alone, name = chart.render(), f"kplane-{component}"
    assert name not in alone.names("PodDisruptionBudget")
    assert "topologySpreadConstraints" not in alone.one(kind, name)["spec"]["template"]["spec"]

    several = chart.render(settings={f"{component}.replicas": 3})
    spec = several.one(kind, name)["spec"]
    assert spec["replicas"] == 3
    budget = several.one("PodDisruptionBudget", name)["spec"]
    assert budget == {"maxUnavailable": 1, "selector": spec["selector"]}
    constraints = spec["template"]["spec"]["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in constraints] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert all(constraint["labelSelector"] == spec["selector"] for constraint in constraints)


def test_rollout_of_operator_has_no_unavailable_replica(chart: Any) -> None:
    strategy = chart.render().one("Deployment", "kplane-operator")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize("release", ["kplane", "prod"])
def test_operators_of_all_releases_may_write_the_same_lease(chart: Any, release: str) -> None:
    rendered = chart.render(release=release)
    lease = rendered.one("Lease", "kplane-operator")
    assert lease["metadata"]["namespace"] == "kube-system"
    # The operators own the spec, and an upgrade must not change it.
    assert "spec" not in lease
    name = "kplane-operator" if release == "kplane" else f"{release}-kplane-operator"
    role = rendered.one("Role", f"{name}-lease")
    assert role["metadata"]["namespace"] == "kube-system"
    assert [rule["resourceNames"] for rule in role["rules"]] == [["kplane-operator"]]


def test_initial_cluster_names_all_members(chart: Any) -> None:
    rendered = chart.render(settings=THREE)
    args = rendered.one("StatefulSet", "kplane-etcd")["spec"]["template"]["spec"]["containers"][0]["args"]
    peer = "https://kplane-etcd-{0}.kplane-etcd-peers.kplane-system.svc:2380"
    cluster = ",".join(f"kplane-etcd-{i}={peer.format(i)}" for i in range(3))
    assert f"--initial-cluster={cluster}" in args


@pytest.mark.parametrize(
    ("release", "settings", "operator"),
    [
        ("kplane", {}, "kplane-operator"),
        ("prod", {}, "prod-kplane-operator"),
        ("my-kplane", {}, "my-kplane-operator"),
        ("prod", {"fullnameOverride": "planes"}, "planes-operator"),
        ("prod", {"nameOverride": "planes"}, "prod-planes-operator"),
    ],
)
def test_names_follow_release_and_overrides(chart: Any, release: str, settings: dict[str, Any], operator: str) -> None:
    rendered = chart.render(release=release, settings=settings)
    assert operator in rendered.names("Deployment")


def test_names_of_longest_release_fit_kubernetes_limits(chart: Any) -> None:
    """A pod of a StatefulSet or Job has a label with its full name. A label has at most 63 characters."""
    for settings in (THREE, RESTORE):
        rendered = chart.render(release="a-very-long-name-of-a-release-of-kplane-in-helm-53-xx", settings=settings)
        names = {
            item["metadata"]["name"]: item["kind"]
            for item in rendered.manifests
            if item["kind"] != "CustomResourceDefinition"
        }
        assert {name: kind for name, kind in names.items() if len(name) > 63} == {}
        # Kubernetes appends eleven characters to the names of a CronJob's Jobs.
        assert all(len(name) <= 52 for name in rendered.names("CronJob"))


def test_default_images_have_the_pinned_versions(chart: Any) -> None:
    values = chart.values
    assert values["controlPlanes"]["kubeApiserverImage"] == f"registry.k8s.io/kube-apiserver:v{KUBERNETES.version}"
    assert values["controlPlanes"]["etcdImage"] == f"registry.k8s.io/etcd:v{ETCD.version}"
    assert values["etcd"]["image"] == values["controlPlanes"]["etcdImage"]


@pytest.mark.parametrize("component", ["operator", "mcm"])
def test_error_of_missing_image_names_make_targets(chart: Any, component: str) -> None:
    """With a default name, any publisher of that repository could choose the images that users run."""
    assert chart.values[component]["image"]["repository"] == ""
    with pytest.raises(chart.refused) as caught:
        chart.render(settings={f"{component}.image.repository": ""})
    assert f"{component}.image.repository is empty" in str(caught.value)
    targets = set(re.findall(r"`make ([a-z-]+)`", str(caught.value)))
    assert targets == {"install-kind", "images"}
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(), re.MULTILINE))


def test_images_have_given_repository_tag_and_digest(chart: Any) -> None:
    version = yaml.safe_load((chart.directory / "Chart.yaml").read_text())["appVersion"]
    digest = f"sha256:{'1' * 64}"
    rendered = chart.render(
        settings={
            "operator.image": {"repository": "registry.example.org:5000/operator", "tag": "", "digest": ""},
            "mcm.image": {"repository": "registry.example.org/mcm", "tag": "v9", "digest": digest},
        }
    )
    (operator,) = rendered.one("Deployment", "kplane-operator")["spec"]["template"]["spec"]["containers"]
    (mcm,) = rendered.one("StatefulSet", "kplane-mcm")["spec"]["template"]["spec"]["containers"]
    assert operator["image"] == f"registry.example.org:5000/operator:{version}"
    assert mcm["image"] == f"registry.example.org/mcm:v9@{digest}"
    assert f"--mcm-image={mcm['image']}" in operator["args"]


def test_chart_of_a_release_names_its_images_by_digest(chart: Any, tmp_path: Path) -> None:
    released = replace(chart, directory=tmp_path / "kplane", images=None, rendered={})
    shutil.copytree(chart.directory, released.directory)
    digest = f"sha256:{'2' * 64}"
    values = released.directory / "values.yaml"
    for name in ("operator", "mcm"):
        name_image(name, repository=f"registry.example.org/{name}", tag="1.2.3", digest=digest, values=values)

    rendered = released.render()

    for kind, name in (("Deployment", "operator"), ("StatefulSet", "mcm")):
        (container,) = rendered.one(kind, f"kplane-{name}")["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"registry.example.org/{name}:1.2.3@{digest}"
    assert values.read_text().count("#") == (chart.directory / "values.yaml").read_text().count("#")
    with pytest.raises(ValueError, match=r"has no empty operator\.image\.repository"):
        name_image("operator", repository="elsewhere", tag="1", digest=digest, values=values)
    with pytest.raises(ValueError, match="'latest' is not a digest"):
        name_image("operator", repository="elsewhere", tag="1", digest="latest", values=values)


def test_no_pod_reads_metrics_unless_the_values_name_it(chart: Any) -> None:
    """The kubelet probes from the node. A NetworkPolicy never blocks the node."""
    for name in ("kplane-operator", "kplane-mcm", "kplane-etcd"):
        ingress = chart.render().one("NetworkPolicy", name)["spec"].get("ingress", [])
        ports = {port["port"] for rule in ingress for port in rule["ports"]}
        assert ports == ({"client", "peer"} if name == "kplane-etcd" else set())
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    rendered = chart.render(settings={"networkPolicy.metricsFrom": prometheus})
    for name, port in (("kplane-operator", "http"), ("kplane-mcm", "http"), ("kplane-etcd", "metrics")):
        rule = {"from": prometheus, "ports": [{"port": port, "protocol": "TCP"}]}
        assert rule in rendered.one("NetworkPolicy", name)["spec"]["ingress"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"etcd.replicas": 2}, "at '/etcd/replicas': value must be one of 1, 3"),
        ({"operator.replicas": 0}, "at '/operator/replicas': minimum"),
        ({"mcm.replicas": 17}, "at '/mcm/replicas': maximum"),
        ({"mcm.extraArgs": ["--cluster-selector=tier=gold"]}, "leave it out, and set mcm.source.selector"),
        ({"mcm.extraArgs": ["--v=2", "--no-report-status"]}, "leave it out, and set mcm.reportStatus"),
        ({"mcm.extraArgs": ["--registration=a"]}, "mcm.extraArgs has --registration, which the chart sets"),
        ({"mcm.extraArgs": ["--cluster-shard-id=a"]}, "mcm.extraArgs has --cluster-shard-id, which the chart sets"),
        (
            {"mcm.dedicated.resources.limits.memory": "100Mi"},
            "mcm.dedicated.resources.limits.memory is 100Mi, and requests.memory is 128Mi: raise the limit",
        ),
        (
            {"mcm.dedicated.resources.requests.cpu": 2, "mcm.dedicated.resources.limits.cpu": "1500m"},
            "requests.cpu is 2",
        ),
        ({"mcm.dedicated.resources.requests.memory": "0Mi"}, "requests.memory is 0Mi: it must be more than nothing"),
        ({"mcm.dedicated.resources.requests.memory": 1.5}, "at '/mcm/dedicated/resources/requests/memory'"),
        ({"mcm.dedicated.resources.requests.cpu": 0.0005}, "at '/mcm/dedicated/resources/requests/cpu'"),
        ({"surprise": True}, "additional properties 'surprise' not allowed"),
        ({"controlPlanes.expose": "nodeport"}, "at '/controlPlanes/expose': value must be one of 'ClusterIP'"),
        ({"networkPolicy.dns": []}, "at '/networkPolicy/dns': minItems: got 0, want 1"),
        ({"controlPlanes.storageSize": "10 GB"}, "at '/controlPlanes/storageSize'"),
        ({"controlPlanes.replicas": 0}, "at '/controlPlanes/replicas': minimum"),
        ({"controlPlanes.externalHost": "https://a"}, "at '/controlPlanes/externalHost'"),
        ({"operator.logLevel": "info"}, "at '/operator/logLevel': value must be one of 'DEBUG'"),
        ({"operator.workers": "many"}, "at '/operator/workers': got string, want integer"),
        ({"mcm.image.tag": "a b"}, "at '/mcm/image/tag'"),
        ({"etcd.external.endpoint": "http://etcd:2379"}, "at '/etcd/external/endpoint'"),
        ({"etcd.backup.schedule": "often"}, "at '/etcd/backup/schedule'"),
        ({"etcd.backup.accessMode": "ReadWriteOncePod"}, "at '/etcd/backup/accessMode'"),
        ({"etcd.replicas": 3}, "Set etcd.backup.accessMode to ReadWriteMany"),
        ({"etcd.backup.keep": 0}, "at '/etcd/backup/keep'"),
        ({"etcd.restore.snapshot": "../a.db"}, "at '/etcd/restore/snapshot'"),
        ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
        ({"metrics.serviceMonitor.interval": "often"}, "at '/metrics/serviceMonitor/interval'"),
        ({"metrics.serviceMonitor.enabled": True}, "networkPolicy.metricsFrom is empty: name the pods of Prometheus"),
        (
            {"etcd.enabled": False},
            "etcd.enabled is false, so virtual control planes need an etcd of yours: set etcd.external.endpoint",
        ),
        (
            {"etcd.enabled": False, "etcd.external.endpoint": "https://etcd:2379"},
            "set etcd.external.endpoint and etcd.external.credentialsSecret",
        ),
        ({"etcd.external.credentialsSecret": "root"}, "etcd.external is set, and etcd.enabled is true"),
        ({"controlPlanes.expose": "NodePort"}, "controlPlanes.externalHost is empty"),
        ({"controlPlanes.externalHost": "a"}, "used with controlPlanes.expose NodePort only, and that is ClusterIP"),
        (
            {"etcd.restore.snapshot": "a.db", "etcd.backup.enabled": False},
            "etcd.restore.snapshot is set, and etcd.backup.enabled is false",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_chart_refuses_invalid_values_with_an_explanation(chart: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.refused) as caught:
        chart.render(settings=settings)
    assert says in str(caught.value)
