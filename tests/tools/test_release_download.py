"""What is downloaded is what the project published, or it is not taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.programs import BinariesError
from kplane.binaries.release import ReleaseSites
from kplane.binaries.upstreams import ETCD, KUBERNETES


def _only(site: Path, name: str) -> Path:
    (found,) = site.rglob(name)
    return found


def test_wrong_checksum_of_a_program_is_refused(machine: Any, release: tuple[Path, str]) -> None:
    site, url = release
    machine.sites = ReleaseSites(mirror=url)
    machine.install_go(build="exit 1")
    with _only(site, "kube-scheduler").open("ab") as file:
        file.write(b"tampered")

    with pytest.raises(
        BinariesError, match=r"kube-scheduler: its SHA-256 is [0-9a-f]{64}, but [0-9a-f]{64} is published"
    ):
        machine.resolve()

    assert not (machine.directory(KUBERNETES) / "kube-scheduler").exists()


def test_wrong_checksum_of_an_archive_is_refused(machine: Any, release: tuple[Path, str]) -> None:
    site, url = release
    machine.sites = ReleaseSites(mirror=url)
    machine.install_go()
    with _only(site, "etcd-*.tar.gz").open("ab") as file:
        file.write(b"tampered")

    machine.resolve()

    assert any("etcd: official release: failed to verify" in line and "is published" in line for line in machine.lines)
    assert machine.built == list(ETCD.packages.values())


def test_release_without_the_version_falls_through(machine: Any, release: tuple[Path, str]) -> None:
    site, url = release
    machine.sites = ReleaseSites(mirror=url)
    machine.install_go()
    _only(site, "kube-apiserver.sha256").unlink()
    _only(site, "SHA256SUMS").write_text(f"{'0' * 64}  something-else.tar.gz\n")

    machine.resolve()

    assert any("kube-apiserver.sha256: 404" in line for line in machine.lines)
    assert any(re.search("failed to verify etcd-v.* do not list it", line) for line in machine.lines)
    assert len(machine.built) == len(KUBERNETES.packages) + len(ETCD.packages)


def test_download_that_stops_midway_is_continued_by_a_build(machine: Any, release: tuple[Path, str]) -> None:
    site, url = release
    machine.sites = ReleaseSites(mirror=url)
    machine.install_go()
    _only(site, "kube-scheduler").unlink()

    machine.resolve()

    assert machine.built == [KUBERNETES.packages["kube-scheduler"], KUBERNETES.packages["kubectl"]]


@pytest.mark.parametrize("program", ["helm", "kind"])
def test_helm_and_kind_come_from_their_releases(
    machine: Any, release: tuple[Path, str], run_program: Any, program: str
) -> None:
    machine.sites = ReleaseSites(mirror=release[1])

    binaries = machine.resolve(program)

    assert run_program(binaries.path(program)) == f"released {program}"


@pytest.mark.parametrize(("program", "file"), [("helm", "helm-v*.tar.gz"), ("kind", "kind-linux-*[0-9]")])
def test_wrong_checksum_of_helm_or_kind_is_refused(
    machine: Any, release: tuple[Path, str], program: str, file: str
) -> None:
    site, url = release
    machine.sites = ReleaseSites(mirror=url)
    machine.install_go(build="exit 1")
    with _only(site, file).open("ab") as tampered:
        tampered.write(b"tampered")

    with pytest.raises(BinariesError, match=r"its SHA-256 is [0-9a-f]{64}, but [0-9a-f]{64} is published"):
        machine.resolve(program)
