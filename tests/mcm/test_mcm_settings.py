"""The command line of mcm."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.api.configuration import HostPort
from kplane.mcm.settings import Settings


def parse(tmp_path: Path, *more: str) -> Settings:
    return Settings.parse([f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *more])


def test_flags_are_parsed_and_have_defaults(tmp_path: Path) -> None:
    settings = parse(tmp_path, "--kubeconfig=k", f"--programs-dir={tmp_path.parent}")
    assert settings.kubeconfig == Path("k")
    assert settings.programs_dir == (tmp_path, tmp_path.parent)
    assert settings.listen == HostPort("127.0.0.1", 8081)
    assert parse(tmp_path).kubeconfig is None


@pytest.mark.parametrize(
    ("text", "host"), [("0.0.0.0:80", "0.0.0.0"), ("[::1]:80", "::1"), ("localhost:80", "localhost")]
)
def test_listen_accepts_hosts_and_addresses(tmp_path: Path, text: str, host: str) -> None:
    assert parse(tmp_path, f"--listen={text}").listen == HostPort(host, 80)


@pytest.mark.parametrize("text", ["80", ":80", "host", "host:", "host:65536", "host:x", "host:-1"])
def test_invalid_listen_address_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(tmp_path, f"--listen={text}")
    assert exit_info.value.code == 2
    assert "this is not HOST:PORT" in capsys.readouterr().err


def test_missing_directory_of_programs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, f"--programs-dir={tmp_path}/missing")
    assert f"{tmp_path}/missing: there is no such directory" in capsys.readouterr().err


def test_flags_are_not_abbreviated(tmp_path: Path) -> None:
    settings = parse(tmp_path, "--kube=k")
    assert settings.kubeconfig is None
    assert settings.instance_flags.arguments == ("--kube=k",)  # kube-controller-manager will reject this flag


def test_flags_of_kube_controller_manager_keep_their_order(tmp_path: Path) -> None:
    arguments = ["--concurrent-gc-syncs", "5", "--log-level=error", "-v", "2", "--feature-gates=A=true"]
    settings = parse(tmp_path, *arguments)
    assert settings.log_level == "error"
    assert settings.instance_flags.arguments == ("--concurrent-gc-syncs", "5", "-v", "2", "--feature-gates=A=true")


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--master=https://a", "the control plane of its own registration"),
        ("--authentication-kubeconfig=a", "the control plane of its own registration"),
        ("--secure-port=1", "gives each instance a port"),
        ("--secure_port=1", "gives each instance a port"),
        ("--client-ca-file=a", "who may ask an instance"),
        ("--requestheader-client-ca-file=a", "who may ask an instance"),
        ("--leader-elect", "mcm holds the Lease of an instance"),
        ("--leader-elect-resource-name=a", "mcm holds the Lease of an instance"),
        ("--cluster-signing-key-file=a", "come from the Secret"),
        ("--cluster-signing-kubelet-client-cert-file=a", "come from the Secret"),
        ("--version", "ask the program itself"),
        ("--", "every argument has to be a flag"),
        ("--controllers=-job-controller", "has none run"),
        ("--controllers=", "has none run"),
    ],
)
def test_flag_that_mcm_cannot_pass_on_is_refused_with_the_reason(
    tmp_path: Path, flag: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(tmp_path, flag)
    assert exit_info.value.code == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_flags_choose_metrics_logs_and_status_reports(tmp_path: Path) -> None:
    default = parse(tmp_path)
    assert (default.instance_metrics, default.instance_logs, default.report_status) == ("fixed", "files", False)
    settings = parse(tmp_path, "--instance-metrics=none", "--instance-logs=json", "--report-status")
    assert (settings.instance_metrics, settings.instance_logs, settings.report_status) == ("none", "json", True)
    assert parse(tmp_path, "--no-report-status").report_status is False


@pytest.mark.parametrize("flag", ["--instance-metrics=full", "--instance-logs=syslog"])
def test_unknown_choice_of_metrics_or_logs_is_refused(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(tmp_path, flag)
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "announced"),
    [([], False), (["--registration=a"], True), (["--cluster-sharding", "--cluster-lease-namespace=b"], True)],
)
def test_dedicated_or_sharded_mcm_has_to_announce_instances(tmp_path: Path, flags: list[str], announced: bool) -> None:
    assert parse(tmp_path, "--report-status", *flags).has_to_announce is announced


def test_environment_variables_set_flags_that_are_not_given(tmp_path: Path) -> None:
    environment = {"KPLANE_MCM_LOG_LEVEL": "debug", "KPLANE_MCM_INSTANCE_MEMORY_MIB": "0", "KPLANE_MCM_PORT": "tcp://x"}
    arguments = [f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}", "--instance-memory-mib=64"]
    settings = Settings.parse(arguments, environment=environment)
    assert (settings.log_level, settings.instance_memory_mib) == ("debug", 64)
