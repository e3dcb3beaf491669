"""Operator flags are checked before the start. The exit status is 2 for an invalid flag, and 1 for other failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.api.configuration import ConfigurationError
from kplane.controlplane_operator.config import EtcdAt, OperatorConfig
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.main import main
from kplane.pki.primitives import create_authority


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    (tmp_path / "kubeconfig").write_text("{}")
    for name in ("ca.crt", "ca.key", "client.crt", "client.key"):
        (tmp_path / name).write_text("x")
    return [
        f"--kubeconfig={tmp_path}/kubeconfig",
        f"--state-dir={tmp_path}/state",
        f"--programs-dir={tmp_path}",
        "--shared-etcd-endpoint=https://127.0.0.1:2379",
        f"--shared-etcd-credentials={tmp_path}",
    ]


def test_parse_converts_flags_to_settings(flags: list[str], tmp_path: Path) -> None:
    settings = OperatorConfig.parse([*flags, "--listen=[::1]:9000", "--mcm-service-account=ns/name", "--workers=3"])
    assert settings.listen == ("::1", 9000)
    assert (settings.mcm_service_account, settings.workers) == (("ns", "name"), 3)
    assert settings.shared_etcd is not None
    assert settings.shared_etcd.credentials == tmp_path


def test_parse_of_data_stores_needs_name_url_and_credentials(flags: list[str], tmp_path: Path) -> None:
    assert OperatorConfig.parse(flags).data_stores == {}
    for directory in (tmp_path / "stores" / "pool-b", tmp_path / "stores" / "empty"):
        directory.mkdir(parents=True)
    for name in ("ca.crt", "ca.key", "client.crt", "client.key"):
        (tmp_path / "stores" / "pool-b" / name).write_text("x")
    named, credentials = "--data-store=pool-b=https://10.0.0.6:2379", f"--data-store-credentials={tmp_path}/stores"
    data_stores = OperatorConfig.parse([*flags, named, credentials]).data_stores
    assert data_stores == {"pool-b": EtcdAt("https://10.0.0.6:2379", tmp_path / "stores" / "pool-b")}
    for invalid_flags, message in (
        ([named], "go together"),
        ([credentials], "go together"),
        ([named, named, credentials], "names pool-b twice"),
        (["--data-store=default=https://10.0.0.6:2379", credentials], "default is the first shared etcd"),
        (["--data-store=pool-b", credentials], "this is not NAME=URL"),
        (["--data-store=Pool=https://10.0.0.6:2379", credentials], "this is not NAME=URL"),
        (["--data-store=pool-b=http://10.0.0.6:2379", credentials], "an https URL is needed"),
        (["--data-store=empty=https://10.0.0.6:2379", credentials], "directory empty: ca.crt is missing there"),
        (["--data-store=pool-c=https://10.0.0.6:2379", credentials], "directory pool-c: ca.crt is missing there"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            OperatorConfig.parse([*flags, *invalid_flags])


def test_parse_of_gateway_needs_url_and_valid_ca(flags: list[str], tmp_path: Path) -> None:
    ca, nonsense = tmp_path / "gateway-ca", tmp_path / "nonsense"
    ca.write_bytes(create_authority("gateway").certificate)
    nonsense.write_text("none")
    assert OperatorConfig.parse(flags).gateway is None
    gateway = OperatorConfig.parse([*flags, "--gateway-url=https://api.example.org/", f"--gateway-ca={ca}"]).gateway
    assert gateway == Gateway(url="https://api.example.org", ca=ca.read_bytes(), namespace="kplane-gateway")
    named = [*flags, "--gateway-url=https://API.example.org", f"--gateway-ca={ca}"]
    gateway = OperatorConfig.parse([*named, "--gateway-domain=cp.example.org"]).gateway
    assert gateway is not None
    assert gateway.domain == "cp.example.org"
    url = "--gateway-url=https://api.example.org"
    issued = OperatorConfig.parse([*flags, url]).gateway
    assert issued is not None
    assert issued.ca == b""
    for invalid_flags, message in (
        ([f"--gateway-ca={ca}"], "without --gateway-url"),
        (["--gateway-namespace=gateways"], "without --gateway-url"),
        (["--gateway-domain=cp.example.org"], "without --gateway-url"),
        ([url, f"--gateway-ca={ca}", "--gateway-domain=example.org"], "api.example.org of --gateway-url is below it"),
        ([url, f"--gateway-ca={ca}", "--gateway-domain=Example.org"], "lower-case"),
        ([url, f"--gateway-ca={ca}", "--gateway-domain=*.example.org"], "lower-case"),
        ([url, f"--gateway-ca={ca}", f"--gateway-domain={'a.' * 94}aa"], "at most 189"),
        ([url, f"--gateway-ca={nonsense}"], "no certificate"),
        ([f"{url}/path", f"--gateway-ca={ca}"], "an https URL is needed"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            OperatorConfig.parse([*flags, *invalid_flags])


@pytest.mark.parametrize(
    "wrong",
    [
        "--listen=nowhere",
        "--listen=127.0.0.1:70000",
        "--workers=0",
        "--mcm-service-account=name",
        "--kubeconfig=/no/such/file",
        "--programs-dir=/no/such/directory",
        "--shared-etcd-endpoint=http://127.0.0.1:2379",
        "--shared-etcd-credentials=/",
        "--cluster-kubeconfig=/no/such/file",
    ],
)
def test_main_exits_2_and_names_flag_with_invalid_value(
    flags: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = wrong.partition("=")[0]
    with pytest.raises(ConfigurationError, match=flag):
        OperatorConfig.parse([*flags, wrong])
    assert main([*flags, wrong]) == 2
    assert flag in capsys.readouterr().err


def test_parse_refuses_shared_etcd_without_credentials(flags: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        OperatorConfig.parse([flag for flag in flags if "credentials" not in flag])


def test_main_exits_1_with_unusable_kubeconfig(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 1


def test_default_election_has_no_pods_and_lease_below_15_seconds(flags: list[str]) -> None:
    election = OperatorConfig.parse(flags).election
    assert election.pods is None
    assert election.timings.duration_seconds < 15


def test_election_pods_are_equal_for_replicas_of_a_release(flags: list[str]) -> None:
    pods = [*flags, "--runtime=pods", "--kube-apiserver-image=a", "--etcd-image=b", "--namespace=ns"]
    names = {OperatorConfig.parse([*pods, f"--secrets-role={role}"]).election.pods for role in ("a", "a", "b")}
    assert names == {"ns/a", "ns/b"}


@pytest.mark.parametrize("seconds", [(7, 7.0, 1.5), (10, 7.0, 6.0), (10, 7.0, 0.0)])
def test_parse_refuses_inconsistent_lease_times(flags: list[str], seconds: tuple[int, float, float]) -> None:
    lease, deadline, retry = seconds
    lease_flags = [
        f"--leader-elect-lease-seconds={lease}",
        f"--leader-elect-renew-deadline-seconds={deadline}",
        f"--leader-elect-retry-seconds={retry}",
    ]
    with pytest.raises(ConfigurationError, match="--leader-elect-lease-seconds"):
        OperatorConfig.parse([*flags, *lease_flags])


def test_parse_of_snapshots_needs_recipient_and_single_store(flags: list[str], tmp_path: Path) -> None:
    recipient = "--snapshot-recipient=age10xrvnm6h3640jymngzm8fnd7st5wgxk6xdjuezggfpw447dh4agqds5tkt"
    volume, bucket = f"--snapshot-volume={tmp_path}", "--snapshot-bucket=s3://backups/kplane"
    credentials = f"--snapshot-bucket-credentials={tmp_path}"
    assert OperatorConfig.parse(flags).open_snapshots() is None
    for valid_flags in ([recipient], [recipient, volume]):
        assert OperatorConfig.parse([*flags, *valid_flags]).open_snapshots() is not None
    for invalid_flags, message in (
        ([volume], "need --snapshot-recipient"),
        ([bucket, credentials], "need --snapshot-recipient"),
        ([recipient, volume, bucket, credentials], "only one of --snapshot-volume and --snapshot-bucket"),
        ([recipient, bucket], "--snapshot-bucket needs --snapshot-bucket-credentials"),
        ([recipient, credentials], "of no use without --snapshot-bucket"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            OperatorConfig.parse([*flags, *invalid_flags])
