"""Operator and mcm parse the flags that the chart gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.controlplane_operator.config import EtcdAt, OperatorConfig
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.hibernation.room import Limits
from kplane.mcm.placement.sharding import SHARDS
from kplane.mcm.settings import Settings as McmSettings
from kplane.pki.primitives import create_authority
from kplane.workloads import Resources
from kplane.workloads.pods import Image

pytestmark = pytest.mark.integration


def arguments(rendered: Any, program: str) -> list[str]:
    """Return the arguments of a program in the rendered chart."""
    (template,) = [result for name, result in rendered.pod_templates().items() if name.endswith(program)]
    (container,) = template["spec"]["containers"]
    result: list[str] = container["args"]
    return result


CA = create_authority("gateway").certificate


def operator_settings(rendered: Any, credentials: Path) -> OperatorConfig:
    for directory in (credentials, credentials / "pool-b"):
        directory.mkdir(exist_ok=True)
        for name in ("ca.crt", "ca.key", "client.crt", "client.key"):
            (directory / name).touch()
    flags = [item.replace("=/backup", f"={credentials}") for item in arguments(rendered, "-operator")]
    (credentials / "ca.crt").write_bytes(CA)
    mounted = ("/etc/kplane/shared-etcd", "/etc/kplane/bucket", "/etc/kplane/gateway", "/etc/kplane/data-stores")
    return OperatorConfig.parse([_replaced(item, mounted, str(credentials)) for item in flags])


def _replaced(text: str, paths: tuple[str, ...], by: str) -> str:
    for path in paths:
        text = text.replace(path, by)
    return text


def test_operator_flags_carry_all_values(chart: Any, everything_on: Path, tmp_path: Path) -> None:
    rendered = chart.render(everything_on)
    settings = operator_settings(rendered, tmp_path)
    assert settings.kubeconfig is None
    assert settings.mcm_service_account == ("kplane-system", "my-kplane-mcm")
    assert settings.data_stores == {"pool-b": EtcdAt("https://etcd-b.example.org:2379", tmp_path / "pool-b")}
    assert (settings.workers, settings.log_level, settings.listen.port) == (4, "DEBUG", 8080)
    assert settings.gateway == Gateway("https://api.example.org", CA, "kube-node-lease", "cp.example.org")
    assert settings.election.pods == "kplane-system/my-kplane-operator-secrets"
    pods = settings.pods
    assert pods is not None
    assert pods.images["kube-apiserver"].reference == "mirror.example.org/kplane/upstream/kube-apiserver:v1.36.3"
    assert pods.images["etcd"].reference == "mirror.example.org/kplane/etcd:v9"
    assert pods.pull_secrets == ("registry", "another")
    assert (pods.replicas, pods.expose, pods.external_host) == (2, "NodePort", "planes.example.org")
    assert (pods.storage_class, pods.storage_size) == ("fast", "20Gi")
    assert pods.dns == ({"ipBlock": {"cidr": "169.254.20.10/32"}},)
    monitors = settings.service_monitors
    assert monitors is not None
    assert (monitors.job, monitors.interval, monitors.labels) == (
        "my-kplane-apiserver",
        "10s",
        {"release": "prometheus"},
    )
    assert settings.awake_limits == Limits(control_planes=24, memory_bytes=8 << 30)
    assert settings.starts_at_once == 3
    assert settings.snapshot_bucket == "s3://backups/kplane"
    assert len(settings.snapshot_recipient) == 1
    assert (settings.snapshot_volume, settings.snapshot_bucket_region) == (None, "eu-central-1")
    operator = rendered.pod_templates()["Deployment/my-kplane-operator"]["spec"]["containers"][0]["image"]
    assert pods.images["egress-proxy"] == Image(operator, pull_policy="Always")


@pytest.mark.parametrize(
    ("settings", "on_volume"),
    [
        ({}, False),
        ({"etcd.backup.accessMode": "ReadWriteMany"}, True),
        ({"etcd.backup.accessMode": "ReadWriteOnce"}, False),
    ],
)
def test_snapshots_without_bucket_use_shared_volume_or_secrets(
    chart: Any, settings: dict[str, Any], on_volume: bool, tmp_path: Path
) -> None:
    recipient = "age10xrvnm6h3640jymngzm8fnd7st5wgxk6xdjuezggfpw447dh4agqds5tkt"
    rendered = chart.render(settings={"etcd.backup.recipients": [recipient], **settings})
    config = operator_settings(rendered, tmp_path)
    assert config.snapshot_recipient == (recipient,)
    assert (config.snapshot_bucket, config.snapshot_volume is not None) == (None, on_volume)
    pod = rendered.pod_templates()["Deployment/kplane-operator"]["spec"]
    mounted = [volume["name"] for volume in pod["containers"][0]["volumeMounts"] if volume["mountPath"] == "/backup"]
    assert mounted == (["backup"] if on_volume else [])
    assert ("backup" in [volume["name"] for volume in pod["volumes"]]) is on_volume


def test_dedicated_mcm_has_the_settings_of_shared_mcm(chart: Any, tmp_path: Path) -> None:
    rendered = chart.render(
        settings={
            "mcm.extraArgs": [
                "--concurrent-gc-syncs=5",
                "--cluster-lease-seconds=30",
                "--feature-gates=A=true,B=false",
            ],
            "mcm.instanceLogs": "json",
            "mcm.image.pullPolicy": "Always",
            "networkPolicy.metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
            "mcm.dedicated.resources.requests.memory": "256Mi",
            "mcm.dedicated.resources.limits": {"cpu": 2, "memory": "1Gi"},
        }
    )
    settings = operator_settings(rendered, tmp_path)
    program, pods = settings.dedicated_mcm, settings.pods
    assert program is not None
    assert pods is not None
    (shared,) = [template for name, template in rendered.pod_templates().items() if name.endswith("-mcm")]
    container = shared["spec"]["containers"][0]
    assert pods.images["mcm"].reference == container["image"]
    assert pods.images["mcm"].pull_policy == container["imagePullPolicy"] == "Always"
    own_namespace = {"matchLabels": {"kubernetes.io/metadata.name": "kplane-system"}}
    prometheus = {"matchLabels": {"app": "prometheus"}}
    assert pods.metrics_from == ({"podSelector": prometheus, "namespaceSelector": own_namespace},)
    dedicated = McmSettings.parse(
        ["--registration=a", "--report-status", "--state-dir=/tmp", "--programs-dir=/tmp", *program.args]
    )
    shared_settings = McmSettings.parse(arguments(rendered, "-mcm"))
    assert (dedicated.flags, dedicated.log_level, dedicated.instance_logs, dedicated.instance_metrics) == (
        shared_settings.flags,
        shared_settings.log_level,
        shared_settings.instance_logs,
        shared_settings.instance_metrics,
    )
    assert program.resources == Resources(cpu_request="50m", memory_request="256Mi", memory_limit="1Gi", cpu_limit="2")


@pytest.mark.parametrize(("enabled", "peers"), [(True, ()), (False, None)])
def test_metrics_peers_are_none_with_policies_and_any_without(
    chart: Any, enabled: bool, peers: tuple[Any, ...] | None, tmp_path: Path
) -> None:
    rendered = chart.render(settings={"networkPolicy.enabled": enabled, "networkPolicy.metricsFrom": []})
    pods = operator_settings(rendered, tmp_path).pods
    assert pods is not None
    assert pods.metrics_from == peers


def test_resource_amounts_may_be_numbers(chart: Any, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        "mcm: {dedicated: {resources: {requests: {cpu: 0.1, memory: 134217728}, limits: {cpu: 2, memory: 1073741824}}}}"
    )
    program = operator_settings(chart.render(file), tmp_path).dedicated_mcm
    assert program is not None
    assert program.resources == Resources(
        cpu_request="0.1", memory_request="134217728", memory_limit="1073741824", cpu_limit="2"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"mcm.reportStatus": False},
        {"mcm.source.kind": "controlplaneendpoint", "mcm.source.kubeconfigSecretTemplate": "a/{name}"},
    ],
)
def test_dedicated_mcm_is_off_without_status_or_registrations(
    chart: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    assert operator_settings(chart.render(settings=settings), tmp_path).dedicated_mcm is None


def test_operator_and_mcm_parse_flags_of_every_values_file(chart: Any, values_file: Path, tmp_path: Path) -> None:
    rendered = chart.render(values_file)
    assert operator_settings(rendered, tmp_path).shared_etcd is not None
    mcm = McmSettings.parse(arguments(rendered, "-mcm"))
    assert mcm.listen.port == 8081
    # mcm passes unknown flags to kube-controller-manager. Only users may set such flags.
    file_values = yaml.safe_load(values_file.read_text()) or {}
    assert list(mcm.instance_flags.arguments) == file_values.get("mcm", {}).get("extraArgs", [])


def test_mcm_may_write_exactly_the_leases_of_its_sharding(chart: Any, everything_on: Path) -> None:
    for rendered, name in ((chart.render(), "kplane-mcm"), (chart.render(everything_on), "my-kplane-mcm")):
        sharding = McmSettings.parse(arguments(rendered, "-mcm")).sharding
        assert sharding is not None
        assert (sharding.namespace, sharding.prefix, sharding.identity) == ("kplane-system", name, None)
        rules = [rule for rule in rendered.one("Role", f"{name}-leases")["rules"] if "resourceNames" in rule]
        [named] = [rule for rule in rules if rule["resources"] == ["leases"]]
        [set_of_pods] = [rule for rule in rules if rule["resources"] == ["statefulsets"]]
        assert (set_of_pods["resourceNames"], set_of_pods["verbs"]) == ([name], ["get"])
        assert rendered.one("StatefulSet", name)["metadata"]["namespace"] == sharding.namespace
        assert set(named["resourceNames"]) == {
            lease
            for number in range(SHARDS)
            # The identity of a pod is its name, which the StatefulSet sets.
            for lease in (f"{sharding.prefix}-shard-{number}", f"{sharding.prefix}-peer-{name}-{number}")
        }


def test_mcm_flags_carry_metrics_logs_and_status_settings(chart: Any, everything_on: Path) -> None:
    default = McmSettings.parse(arguments(chart.render(), "-mcm"))
    assert (default.instance_metrics, default.instance_logs, default.report_status) == ("fixed", "files", True)
    changed = McmSettings.parse(arguments(chart.render(everything_on), "-mcm"))
    assert (changed.instance_metrics, changed.instance_logs, changed.report_status) == ("none", "json", False)


@pytest.mark.parametrize("reported", [True, False])
def test_mcm_may_write_registration_status_only_if_enabled(chart: Any, reported: bool) -> None:
    rendered = chart.render(settings={"mcm.reportStatus": reported})
    rules = rendered.one("ClusterRole", "kplane-mcm")["rules"]
    writes = [rule["resources"] for rule in rules if {"patch", "update", "create", "delete"} & set(rule["verbs"])]
    assert writes == ([["controlplaneregistrations/status"]] if reported else [])
