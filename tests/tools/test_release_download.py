"""Downloads are used only if they match the checksums that the repository records."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from kplane.binaries.errors import WayError
from kplane.binaries.programs import BinariesError
from kplane.binaries.release import ReleaseSites, recorded
from kplane.binaries.upstreams import ETCD, KIND, KUBERNETES, KWOK, UPSTREAMS, Upstream, this_platform
from tools import checksums
from tools.checksums import PLATFORMS


def _only(site: Path, name: str) -> Path:
    (file,) = site.rglob(name)
    return file


def test_program_with_wrong_checksum_is_refused(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    site, machine.sites = release
    machine.install_go(build="exit 1")
    with _only(site, "kube-scheduler").open("ab") as file:
        file.write(b"tampered")

    with pytest.raises(
        BinariesError, match=r"kube-scheduler: its SHA-256 is [0-9a-f]{64}, but [0-9a-f]{64} is recorded"
    ):
        machine.resolve()

    assert not (machine.directory(KUBERNETES) / "kube-scheduler").exists()


def test_archive_with_wrong_checksum_is_refused_and_built(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    site, machine.sites = release
    machine.install_go()
    with _only(site, "etcd-*.tar.gz").open("ab") as file:
        file.write(b"tampered")

    machine.resolve()

    assert any("etcd: official release: failed to verify" in line and "is recorded" in line for line in machine.lines)
    assert machine.built == list(ETCD.packages.values())


def test_program_with_unrecorded_published_checksum_is_refused(
    machine: Any, release: tuple[Path, ReleaseSites]
) -> None:
    site, machine.sites = release
    machine.install_go()
    tampered = _only(site, "kube-apiserver")
    tampered.write_bytes(b"#!/bin/sh\necho tampered\n")
    _only(site, "kube-apiserver.sha256").write_text(hashlib.sha256(tampered.read_bytes()).hexdigest())

    machine.resolve()

    assert any("failed to verify" in line and "is recorded" in line for line in machine.lines)
    assert machine.built == list(KUBERNETES.packages.values())


def test_missing_release_files_are_built(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    site, machine.sites = release
    machine.install_go()
    _only(site, "kube-apiserver").unlink()
    _only(site, "etcd-*.tar.gz").unlink()

    machine.resolve()

    assert any("kube-apiserver: 404" in line for line in machine.lines)
    assert len(machine.built) == len(KUBERNETES.packages) + len(ETCD.packages)


def test_program_without_a_recorded_checksum_is_built(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    _, sites = release
    machine.sites = dataclasses.replace(sites, checksums={})
    machine.install_go()

    machine.resolve()

    assert any(re.search(r"kubernetes: official release: no SHA-256 of v\S+/kube-apiserver", m) for m in machine.lines)
    assert any(re.search(r"etcd: official release: no SHA-256 of v\S+ is recorded", m) for m in machine.lines)
    assert machine.built == [*KUBERNETES.packages.values(), *ETCD.packages.values()]


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda upstream: upstream.name)
def test_recorded_checksums_are_of_the_pinned_version(upstream: Upstream) -> None:
    """Checksums of another version are never read: a build from source silently replaces the download."""
    expected = {
        upstream.fill(upstream.release.file, platform=platform, program=program)
        for platform in PLATFORMS
        for program in upstream.programs
    }
    assert set(recorded(upstream)) in (set(), expected)


def test_unreadable_record_of_checksums_is_refused(tmp_path: Path) -> None:
    upstream = dataclasses.replace(KIND, directory=tmp_path)
    assert recorded(upstream) == {}
    upstream.recorded.write_text("# A comment.\n\nabc  v1/kind\n")
    with pytest.raises(BinariesError, match="SHA256SUMS: 'abc  v1/kind' is not a SHA-256 and a path"):
        recorded(upstream)


@pytest.mark.parametrize(
    "upstream",
    [upstream for upstream in UPSTREAMS if upstream.release.checksums is not None],
    ids=lambda upstream: upstream.name,
)
def test_published_checksums_are_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: tuple[Path, ReleaseSites], upstream: Upstream
) -> None:
    _, sites = release
    monkeypatch.setattr(checksums, "PLATFORMS", (this_platform(),))
    copy = dataclasses.replace(upstream, directory=tmp_path)
    (tmp_path / "go.mod").write_text(upstream.go_mod.read_text())

    checksums.record(copy, sites=sites, report=lambda line: None)

    checksums_by_path = recorded(copy)
    assert len(checksums_by_path) == (len(upstream.programs) if upstream.release.member is None else 1)
    assert checksums_by_path.items() <= (sites.checksums or {}).items()


def test_program_without_published_checksums_is_built(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    machine.sites = release[1]
    machine.install_go()

    machine.resolve("kwok")

    assert machine.built == [KWOK.packages["kwok"]]
    assert any("SHA256SUMS; the project publishes none" in line for line in machine.lines)
    with pytest.raises(WayError, match="failed to read checksums of kwok: the project publishes none"):
        checksums.record(KWOK, sites=machine.sites)


def test_programs_after_a_failed_download_are_built(machine: Any, release: tuple[Path, ReleaseSites]) -> None:
    site, machine.sites = release
    machine.install_go()
    _only(site, "kube-scheduler").unlink()

    machine.resolve()

    assert machine.built == [KUBERNETES.packages["kube-scheduler"], KUBERNETES.packages["kubectl"]]


@pytest.mark.parametrize("program", ["helm", "kind"])
def test_helm_and_kind_come_from_their_releases(
    machine: Any, release: tuple[Path, ReleaseSites], run_program: Any, program: str
) -> None:
    machine.sites = release[1]

    binaries = machine.resolve(program)

    assert run_program(binaries.path(program)) == f"released {program}"


@pytest.mark.parametrize(("program", "file"), [("helm", "helm-v*.tar.gz"), ("kind", "kind-linux-*[0-9]")])
def test_helm_or_kind_with_wrong_checksum_is_refused(
    machine: Any, release: tuple[Path, ReleaseSites], program: str, file: str
) -> None:
    site, machine.sites = release
    machine.install_go(build="exit 1")
    with _only(site, file).open("ab") as tampered:
        tampered.write(b"tampered")

    with pytest.raises(BinariesError, match=r"its SHA-256 is [0-9a-f]{64}, but [0-9a-f]{64} is recorded"):
        machine.resolve(program)
