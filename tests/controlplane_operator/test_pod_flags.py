"""Flags of `--runtime pods`: each flag takes effect, or is refused with a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.api.configuration import ConfigurationError
from kplane.controlplane_operator.config import EtcdService, OperatorConfig
from kplane.provider.errors import KubeconfigError
from kplane.workloads.pods import CLUSTER_DNS, Expose, Image

IMAGES = ["--kube-apiserver-image=registry.example/kube-apiserver:1", "--etcd-image=registry.example/etcd:2"]


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    return ["--runtime=pods", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *IMAGES]


def test_parse_converts_pod_flags_to_settings(flags: list[str]) -> None:
    pod_flags = [
        "--image-pull-secret=one",
        "--image-pull-secret=two",
        "--replicas=3",
        "--expose=NodePort",
        "--external-host=nodes.example",
        "--storage-class=fast",
        "--storage-size=20Gi",
        "--egress-proxy-image=registry.example/operator:3",
        '--dns-peers=[{"podSelector":{"matchLabels":{"app":"dns"}}}]',
        "--shared-etcd-service=kplane-etcd",
        "--namespace=kplane",
    ]
    settings = OperatorConfig.parse([*flags, *pod_flags])
    pods = settings.pods
    assert pods is not None
    assert pods.images == {
        "kube-apiserver": Image("registry.example/kube-apiserver:1", capabilities=("NET_BIND_SERVICE",)),
        "etcd": Image("registry.example/etcd:2"),
        "egress-proxy": Image("registry.example/operator:3"),
        "etcdutl": Image("registry.example/operator:3"),
    }
    assert (pods.pull_secrets, pods.replicas) == (("one", "two"), 3)
    assert (pods.expose, pods.external_host) == (Expose.NODE_PORT, "nodes.example")
    assert (pods.storage_class, pods.storage_size) == ("fast", "20Gi")
    own_namespace = {"matchLabels": {"kubernetes.io/metadata.name": "kplane"}}
    assert pods.dns == ({"namespaceSelector": own_namespace, "podSelector": {"matchLabels": {"app": "dns"}}},)
    assert settings.shared_etcd == EtcdService("kplane-etcd", "kplane")


def test_metrics_from_peers_default_to_namespace_of_operator(flags: list[str]) -> None:
    peers = '[{"podSelector":{},"ipBlock":null},{"podSelector":{},"namespaceSelector":{}},{"ipBlock":{"cidr":"::/0"}}]'
    pods = OperatorConfig.parse([*flags, "--mcm-image=m", "--namespace=kplane", f"--metrics-from={peers}"]).pods
    assert pods is not None
    own_namespace = {"matchLabels": {"kubernetes.io/metadata.name": "kplane"}}
    assert pods.metrics_from == (
        {"podSelector": {}, "namespaceSelector": own_namespace},
        {"podSelector": {}, "namespaceSelector": {}},
        {"ipBlock": {"cidr": "::/0"}},
    )
    pods_without_peers = OperatorConfig.parse([*flags, "--mcm-image=m", "--metrics-from=[]"]).pods
    assert pods_without_peers is not None
    assert pods_without_peers.metrics_from == ()


def test_pod_flags_have_documented_defaults(flags: list[str]) -> None:
    pods = OperatorConfig.parse(flags).pods
    assert pods is not None
    assert (pods.replicas, pods.expose, pods.external_host) == (1, Expose.CLUSTER_IP, None)
    assert pods.metrics_from is None
    assert (pods.storage_class, pods.storage_size, pods.dns, pods.pull_secrets) == (None, "10Gi", CLUSTER_DNS, ())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--replicas=0"], "--replicas 0: at least 1 is needed"),
        (["--mcm-image-pull-policy=Always"], "--mcm-image-pull-policy: it is of no use without --mcm-image"),
        (["--mcm-image=m", "--metrics-from=all"], "--metrics-from all: this is no JSON"),
        (["--mcm-image=m", "--metrics-from=[{}]"], "this is no list of peers as in a NetworkPolicy"),
        (["--mcm-image=m", '--metrics-from=[{"ipBlock":{},"podSelector":{}}]'], "this is no list of peers"),
        (["--mcm-image=m", '--metrics-from={"podSelector":{}}'], "this is no list of peers"),
        (["--expose=NodePort"], "--expose NodePort needs --external-host"),
        (["--external-host=nodes.example"], "only --expose NodePort has this"),
        (["--expose=NodePort", "--external-host=https://nodes"], "this is no host name and no address"),
        (["--expose=NodePort", "--external-host=.:."], "this is no host name and no address"),
        (["--storage-size=10"], "--storage-size 10: this is no size, such as 10Gi"),
        (["--storage-size=much"], "--storage-size much: this is no size, such as 10Gi"),
        (["--storage-size="], "--storage-size : this is no size, such as 10Gi"),
        (["--dns-peers=kube-dns"], "--dns-peers kube-dns: this is no JSON"),
        (["--egress-proxy-image-pull-policy=Always"], "it is of no use without --egress-proxy-image"),
        (
            ["--shared-etcd-service=etcd", "--shared-etcd-endpoint=https://etcd:2379"],
            "--shared-etcd-service stands alone",
        ),
    ],
)
def test_invalid_pod_flag_is_refused_with_message(flags: list[str], given: list[str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        OperatorConfig.parse([*flags, *given])


@pytest.mark.parametrize("missing", ["--kube-apiserver-image", "--etcd-image"])
def test_runtime_pods_needs_both_images(flags: list[str], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--runtime pods needs {missing}"):
        OperatorConfig.parse([flag for flag in flags if not flag.startswith(missing)])


@pytest.mark.parametrize(
    ("given", "host"),
    [("2001:DB8::0001", "2001:db8::1"), ("192.0.2.7", "192.0.2.7"), ("Nodes.Example", "nodes.example")],
)
def test_external_host_is_normalized_as_in_certificates(flags: list[str], given: str, host: str) -> None:
    pods = OperatorConfig.parse([*flags, "--expose=NodePort", f"--external-host={given}"]).pods
    assert pods is not None
    assert pods.external_host == host


@pytest.mark.parametrize(("size", "quota"), [("4Gi", 3 << 30), ("100Gi", 8 << 30), ("1000M", 750_000_000)])
def test_etcd_quota_is_below_storage_size(flags: list[str], size: str, quota: int) -> None:
    assert OperatorConfig.parse([*flags, f"--storage-size={size}"]).etcd_quota_bytes == quota


def test_image_flags_are_refused_for_processes(flags: list[str]) -> None:
    process_flags = [flag for flag in flags if flag != "--runtime=pods"]
    with pytest.raises(ConfigurationError, match="--kube-apiserver-image, --etcd-image: only --runtime pods has this"):
        OperatorConfig.parse(process_flags)


def test_management_config_needs_a_pod_without_kubeconfig(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not in a pod"):
        OperatorConfig.parse(flags).management_config()


def test_service_monitors_are_enabled_by_job_flag(flags: list[str]) -> None:
    assert OperatorConfig.parse(flags).service_monitors is None
    labels = ["--service-monitor-label=release=prometheus", "--service-monitor-label=a=b=c"]
    service_monitors = OperatorConfig.parse(
        [*flags, "--service-monitor-job=kplane-apiserver", *labels]
    ).service_monitors
    assert service_monitors is not None
    assert (service_monitors.job, service_monitors.interval) == ("kplane-apiserver", "30s")
    assert service_monitors.labels == {"release": "prometheus", "a": "b=c"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--service-monitor-label=a=b"], "of no use without --service-monitor-job"),
        (["--service-monitor-job=a", "--service-monitor-interval=often"], "this is no duration"),
        (["--service-monitor-job=a", "--service-monitor-label=a"], "this is not NAME=VALUE"),
        (["--service-monitor-job=a", "--runtime=process"], "only --runtime pods has this"),
    ],
)
def test_invalid_service_monitor_flags_are_refused(flags: list[str], given: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        OperatorConfig.parse([*flags, *given])
