"""Flags for the mcm of a single registration: each flag takes effect, or is refused with a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.api.configuration import ConfigurationError
from kplane.components.mcm import MCM_RESOURCES, McmProgram, mcm_component
from kplane.controlplane_operator.config import OperatorConfig
from kplane.mcm.settings import Settings as McmSettings
from kplane.workloads import Address, File, Resources
from kplane.workloads.pods import Image

PODS = [
    "--runtime=pods",
    "--kube-apiserver-image=registry.example/kube-apiserver:1",
    "--etcd-image=registry.example/etcd:2",
]
IMAGE = "--mcm-image=registry.example/mcm:3"


def parse(tmp_path: Path, *flags: str) -> McmProgram | None:
    return OperatorConfig.parse([f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *flags]).dedicated_mcm


@pytest.fixture
def program(tmp_path: Path) -> Path:
    executable = tmp_path / "mcm"
    executable.touch(mode=0o700)
    return executable


def test_mcm_process_runs_the_named_program(tmp_path: Path, program: Path) -> None:
    mcm_program = parse(tmp_path, f"--mcm-program={program}", "--mcm-arg=--v=2", "--mcm-arg=--instance-logs=json")
    assert mcm_program == McmProgram(
        program=str(program), directories=(tmp_path,), args=("--v=2", "--instance-logs=json")
    )


def test_mcm_pod_runs_the_named_image(tmp_path: Path) -> None:
    settings = OperatorConfig.parse([f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}", *PODS, IMAGE])
    assert settings.dedicated_mcm == McmProgram(program="mcm", directories=(Path("/usr/local/bin"),))
    assert settings.pods is not None
    assert settings.pods.images["mcm"] == Image("registry.example/mcm:3")
    assert settings.pods.ports["http"] == 8081


def test_mcm_pod_gets_resources_of_flags(tmp_path: Path) -> None:
    mcm_program = parse(tmp_path, *PODS, IMAGE, "--mcm-requests=cpu=1,memory=256Mi", "--mcm-limits=memory=2Gi,cpu=2")
    assert mcm_program is not None
    assert mcm_program.resources == Resources(
        cpu_request="1", memory_request="256Mi", memory_limit="2Gi", cpu_limit="2"
    )


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--mcm-limits=memory=64Mi", ("50m", "64Mi", "64Mi")),
        ("--mcm-requests=memory=4Gi", ("50m", "4Gi", "4Gi")),
        ("--mcm-requests=cpu=2", ("2", "128Mi", "768Mi")),
    ],
)
def test_mcm_flags_override_default_resources(tmp_path: Path, flag: str, expected: tuple[str, str, str]) -> None:
    mcm_program = parse(tmp_path, *PODS, IMAGE, flag)
    assert mcm_program is not None
    assert (
        mcm_program.resources.cpu_request,
        mcm_program.resources.memory_request,
        mcm_program.resources.memory_limit,
    ) == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--mcm-program=/nowhere/mcm"], "--mcm-program /nowhere/mcm: there is no such program"),
        ([IMAGE], "--mcm-image: only --runtime pods has this"),
        (["--mcm-limits=memory=1Gi"], "only --runtime pods has this"),
        (
            [*PODS, IMAGE, "--mcm-arg=--v=2", "--mcm-arg=--cluster-selector=tier=gold"],
            "--mcm-arg --cluster-selector=tier=gold: leave --cluster-selector out",
        ),
        ([*PODS, IMAGE, "--mcm-arg=--listen", "--mcm-arg=0.0.0.0:1"], "leave --listen out"),
        (["--mcm-arg=--v=2"], "of no use without --mcm-program"),
        ([*PODS, "--mcm-arg=--v=2"], "of no use without --mcm-image"),
        ([*PODS, "--mcm-program=/bin/sh"], "--mcm-program: only --runtime process has this; pods have --mcm-image"),
        ([*PODS, IMAGE, "--mcm-limits=memory"], "--mcm-limits memory: amounts are written like cpu=50m,memory=128Mi"),
        ([*PODS, IMAGE, "--mcm-limits=disk=1Gi"], "amounts are written like cpu=50m,memory=128Mi"),
        ([*PODS, IMAGE, "--mcm-limits=cpu=1,cpu=2"], "amounts are written like cpu=50m,memory=128Mi"),
        ([*PODS, IMAGE, "--mcm-requests=memory=much"], "'much' is no amount of memory, such as 512Mi or 2Gi"),
        (
            [*PODS, IMAGE, "--mcm-requests=memory=2Gi", "--mcm-limits=memory=1Gi"],
            "--mcm-limits must not be less than --mcm-requests",
        ),
    ],
)
def test_invalid_flags_are_refused_with_message(tmp_path: Path, flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(tmp_path, *flags)
    assert sentence in str(refused.value)


def test_mcm_arg_refuses_flags_that_the_operator_sets(tmp_path: Path) -> None:
    """mcm uses the last of repeated flags, and refuses flags that select many registrations."""
    flags = [flag for flag in McmSettings.flags() if flag.startswith(("--cluster-", "--registration"))]
    assert {"--registration", "--cluster-selector", "--cluster-sharding"} <= set(flags)
    for flag in (*flags, "--kubeconfig", "--state-dir", "--listen", "--report-status", "--no-report-status", "--help"):
        with pytest.raises(ConfigurationError, match=f"leave {flag} out"):
            parse(tmp_path, *PODS, IMAGE, f"--mcm-arg={flag}=a")


def test_mcm_arg_passes_similar_controller_flags_on(tmp_path: Path) -> None:
    flags = ("--cluster-cidr=10.0.0.0/8", "--cluster-name=a", "--programs-dir=/opt/older")
    mcm_program = parse(tmp_path, *PODS, IMAGE, *(f"--mcm-arg={flag}" for flag in flags))
    assert mcm_program is not None
    assert mcm_program.args == flags


@pytest.mark.parametrize(("flags", "remedy"), [([], "--mcm-program"), (PODS, "mcm.reportStatus")])
def test_why_no_mcm_names_remedy_without_mcm_flags(tmp_path: Path, flags: list[str], remedy: str) -> None:
    assert parse(tmp_path, *flags) is None
    reason = OperatorConfig.parse([f"--state-dir={tmp_path}", f"--programs-dir={tmp_path}", *flags]).why_no_mcm
    assert reason is not None
    assert remedy in reason
    assert "spec.mode to Shared" in reason


def test_mcm_component_serves_one_registration_and_reports_status() -> None:
    component = mcm_component(
        "mcmabcdef-a",
        registration="a",
        program=McmProgram(program="mcm", directories=(Path("/programs"),), args=("--v=2",)),
        address=Address(host="mcm-abcdef.kplane-cp-a.svc", ports={"http": 8081}, bind="0.0.0.0"),
        service_account="mcm-abcdef",
        files={},
    )
    assert component.args == (
        "--registration=a",
        "--report-status",
        "--state-dir=$(SCRATCH)",
        "--programs-dir=/programs",
        "--listen=0.0.0.0:8081",
        "--v=2",
    )
    assert component.metrics_port == "http"
    # Two replicas would be two writers.
    assert component.single
    assert (component.service_account, component.resources) == ("mcm-abcdef", MCM_RESOURCES)


def test_mcm_process_gets_kubeconfig_file() -> None:
    component = mcm_component(
        "mcmabcdef-a",
        registration="a",
        program=McmProgram(program="/bin/mcm", directories=()),
        address=Address(host="127.0.0.1", ports={"http": 1}),
        service_account="mcm-abcdef",
        files={"kubeconfig": File(b"secret")},
    )
    assert "--kubeconfig=$(FILES)/kubeconfig" in component.args
    assert "secret" not in repr(component)
