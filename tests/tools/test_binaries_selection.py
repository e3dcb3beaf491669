"""Selection of programs, platform and target directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.programs import BinariesError, main
from kplane.binaries.upstreams import (
    ETCD,
    HELM,
    KIND,
    KUBERNETES,
    RUNTIME,
    UPSTREAMS,
    Platform,
    parse_platform,
    this_platform,
)

OTHER = next(p for p in map(parse_platform, ("linux/amd64", "linux/arm64")) if p != this_platform())


def test_default_selection_is_kubernetes_and_etcd(machine: Any) -> None:
    machine.install_go()
    binaries = machine.resolve()
    assert tuple(binaries.paths) == (*KUBERNETES.programs, *ETCD.programs)
    assert not machine.directory(HELM).exists()
    assert not machine.directory(KIND).exists()


def test_only_requested_programs_are_built(machine: Any) -> None:
    machine.install_go()

    binaries = machine.resolve("helm", "etcdutl", "kube-controller-manager")

    packages = [KUBERNETES.packages["kube-controller-manager"], ETCD.packages["etcdutl"], HELM.packages["helm"]]
    assert machine.built == packages
    assert binaries.path("helm") == machine.directory(HELM) / "helm"
    assert binaries.directories == tuple(machine.directory(upstream) for upstream in (KUBERNETES, ETCD, HELM))


def test_path_of_unrequested_cached_program_is_refused(machine: Any) -> None:
    for upstream in UPSTREAMS:
        machine.fill(machine.directory(upstream), upstream)

    binaries = machine.resolve("helm", "kubectl")

    with pytest.raises(
        BinariesError, match="failed to find kind: only kubectl, helm was requested; name it in resolve"
    ):
        binaries.path("kind")
    with pytest.raises(BinariesError, match=r"failed to find etcd: only .* was requested"):
        _ = binaries.etcd


def test_unknown_program_is_refused_before_anything_is_obtained(machine: Any) -> None:
    machine.install_go()
    with pytest.raises(
        BinariesError, match=r"failed to find kubelet: unknown program; choose from .*kubectl.*helm, kind, kwok$"
    ):
        machine.resolve("helm", "kubelet")
    assert machine.built == []


def test_explicit_directory_may_lack_helm(machine: Any, tmp_path: Path) -> None:
    machine.install_go()
    machine.fill(tmp_path / "explicit", *RUNTIME, KIND)

    binaries = machine.resolve(
        "kubectl", "helm", "kind", environment={"KPLANE_BINARIES_DIR": str(tmp_path / "explicit")}
    )

    assert binaries.directories == (tmp_path / "explicit", machine.directory(HELM))
    assert binaries.path("kind") == tmp_path / "explicit" / "kind"
    assert machine.built == [HELM.packages["helm"]]


def test_explicit_directory_may_lack_unrequested_programs(machine: Any, tmp_path: Path) -> None:
    machine.fill(tmp_path / "explicit", ETCD)
    environment = {"KPLANE_BINARIES_DIR": str(tmp_path / "explicit")}

    assert machine.resolve("etcdctl", environment=environment).directories == (tmp_path / "explicit",)
    with pytest.raises(BinariesError, match="it lacks kubectl;"):
        machine.resolve("etcdctl", "kubectl", environment=environment)


def test_failure_names_explicit_directory_without_helm(machine: Any, tmp_path: Path) -> None:
    machine.install_go(build="exit 1")
    with pytest.raises(BinariesError, match=rf"- KPLANE_BINARIES_DIR: {tmp_path} has no helm\n- cache"):
        machine.resolve("helm", environment={"KPLANE_BINARIES_DIR": str(tmp_path)})


def test_other_platform_is_built_into_its_own_cache(machine: Any, tmp_path: Path, run_program: Any) -> None:
    machine.install_go(build='printf "#!/bin/sh\\necho $GOOS/$GOARCH\\n" > "$2"')
    machine.fill(tmp_path / "explicit", *RUNTIME)
    machine.fill(machine.directory(ETCD), ETCD)

    binaries = machine.resolve(
        "etcdctl", platform=OTHER, environment={"KPLANE_BINARIES_DIR": str(tmp_path / "explicit")}
    )

    assert binaries.path("etcdctl") == machine.directory(ETCD, platform=OTHER) / "etcdctl"
    assert run_program(binaries.path("etcdctl")) == f"{OTHER.os}/{OTHER.arch}"


def test_parse_platform_accepts_image_platforms() -> None:
    assert parse_platform("linux/arm64") == Platform("linux", "arm64")
    with pytest.raises(
        BinariesError, match=r"'linux/riscv64': kplane does not run on it; use linux/amd64 or linux/arm64"
    ):
        parse_platform("linux/riscv64")


def test_copies_are_executable_and_independent_of_the_cache(machine: Any, tmp_path: Path, run_program: Any) -> None:
    machine.fill(machine.directory(ETCD), ETCD)
    into = tmp_path / "build" / "programs"
    into.mkdir(parents=True)
    (into / "etcdctl").write_text("an earlier one")
    binaries = machine.resolve("etcdctl", "etcdutl")

    binaries.copy(into)

    assert sorted(path.name for path in into.iterdir()) == ["etcdctl", "etcdutl"]
    assert {path.stat().st_mode & 0o777 for path in into.iterdir()} == {0o755}
    assert run_program(into / "etcdctl") == "cached"
    (into / "etcdctl").write_text("changed")
    assert run_program(binaries.path("etcdctl")) == "cached"


def test_command_line_prints_directories_of_programs(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for upstream in UPSTREAMS:
        machine.fill(machine.directory(upstream), upstream)
    machine.fill(machine.directory(ETCD, platform=OTHER), ETCD)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_CACHE_HOME", "KPLANE_BINARIES_DIR"):
        monkeypatch.delenv(name, raising=False)
    into = tmp_path / "into"

    assert main() == 0
    assert capsys.readouterr().out == f"{machine.directory(KUBERNETES)}\n{machine.directory(ETCD)}\n"
    assert main(["helm"]) == 0
    assert capsys.readouterr().out == f"{machine.directory(HELM)}\n"
    assert main(["--platform", f"{OTHER.os}/{OTHER.arch}", "--into", str(into), "etcdctl"]) == 0
    assert capsys.readouterr().out == f"{into}\n"
    assert [path.name for path in into.iterdir()] == ["etcdctl"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["kubelet"], "failed to find kubelet: unknown program"),
        (["--platform", "plan9/mips"], "failed to read platform 'plan9/mips'"),
    ],
)
def test_command_line_refuses_unknown_program_and_platform(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert f"error: {says}" in capsys.readouterr().err
