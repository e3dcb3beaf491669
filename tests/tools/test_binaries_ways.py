"""Sources of programs, their order, and the error if no source has a program."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from kplane.binaries.programs import RUNTIME_PROGRAMS, Binaries, BinariesError
from kplane.binaries.release import ReleaseSites
from kplane.binaries.upstreams import ETCD, KUBERNETES, RUNTIME


def test_explicit_directory_comes_first(machine: Any, tmp_path: Any) -> None:
    machine.fill(tmp_path / "explicit", *RUNTIME)
    for upstream in RUNTIME:
        machine.fill(machine.directory(upstream), upstream)

    binaries = machine.resolve(environment={"KPLANE_BINARIES_DIR": str(tmp_path / "explicit")})

    assert binaries.directories == (tmp_path / "explicit",)


def test_explicit_directory_must_hold_all_requested_programs(machine: Any, tmp_path: Any) -> None:
    machine.install_go()
    explicit = tmp_path / "explicit"
    machine.fill(explicit, *RUNTIME)
    (explicit / "etcdutl").unlink()
    (explicit / "kubectl").chmod(0o644)

    with pytest.raises(BinariesError, match=r"explicit: it lacks kubectl \(not executable\), etcdutl;"):
        machine.resolve(environment={"KPLANE_BINARIES_DIR": str(explicit)})

    assert machine.built == []


def test_cache_comes_before_release_and_build(machine: Any) -> None:
    machine.install_go()
    for upstream in RUNTIME:
        machine.fill(machine.directory(upstream), upstream)

    binaries = machine.resolve()

    assert binaries.directories == (machine.directory(KUBERNETES), machine.directory(ETCD))
    assert machine.built == []
    assert machine.lines == []


def test_cache_follows_xdg_cache_home(machine: Any, tmp_path: Any) -> None:
    machine.install_go()
    binaries = machine.resolve(environment={"XDG_CACHE_HOME": str(tmp_path / "xdg")})
    assert binaries.kubernetes.parent == tmp_path / "xdg" / "kplane" / "binaries"


def test_release_comes_before_build(machine: Any, release: Any, run_program: Any) -> None:
    machine.install_go()
    machine.sites = release[1]

    binaries = machine.resolve()

    assert [run_program(binaries.path(p)) for p in RUNTIME_PROGRAMS] == [f"released {p}" for p in RUNTIME_PROGRAMS]
    assert machine.built == []


def test_build_comes_last_and_once(machine: Any, run_program: Any) -> None:
    machine.install_go()

    binaries = machine.resolve()
    machine.resolve()

    assert {run_program(binaries.path(program)) for program in RUNTIME_PROGRAMS} == {"built"}
    assert machine.built == [*KUBERNETES.packages.values(), *ETCD.packages.values()]


def test_only_missing_programs_are_built(machine: Any, run_program: Any) -> None:
    machine.install_go()
    for upstream in RUNTIME:
        machine.fill(machine.directory(upstream), upstream)
    (machine.directory(KUBERNETES) / "kube-scheduler").unlink()
    (machine.directory(ETCD) / "etcdctl").chmod(0o644)

    binaries = machine.resolve()

    assert machine.built == [KUBERNETES.packages["kube-scheduler"], ETCD.packages["etcdctl"]]
    assert run_program(binaries.path("etcdctl")) == "built"
    assert run_program(binaries.path("etcd")) == "cached"


def test_failure_names_every_source(machine: Any) -> None:
    machine.install_go(build="echo 'no space left on device' >&2; exit 7")

    with pytest.raises(BinariesError) as failure:
        machine.resolve()

    message = str(failure.value)
    assert (
        f"kube-apiserver, kube-controller-manager, kube-scheduler, kubectl of Kubernetes v{KUBERNETES.version}"
        in message
    )
    assert "- KPLANE_BINARIES_DIR: not set" in message
    assert f"- cache {machine.directory(KUBERNETES)}: no kube-apiserver, " in message
    assert "- official release: failed to reach 127.0.0.1:" in message
    assert "Connection refused" in message
    assert "- go build: failed to build kube-apiserver: go ended with status 7:\nno space left on device" in message


def test_cache_that_cannot_be_written_is_named(machine: Any) -> None:
    machine.cache.parent.mkdir(parents=True)
    machine.cache.write_text("a file where the directory belongs")

    with pytest.raises(BinariesError, match=r"failed to write the cache .*/kplane/binaries: "):
        machine.resolve()


def test_connection_to_silent_site_times_out(machine: Any) -> None:
    machine.install_go()
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        # A full backlog: the kernel drops further SYNs, as a firewall would.
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        machine.sites = ReleaseSites(mirror=url, connect_seconds=0.1)
        machine.resolve()

    assert any(re.search(r"failed to reach \S+: (timed out|no answer within)", line) for line in machine.lines)


def test_unknown_program_is_refused(machine: Any, tmp_path: Any) -> None:
    binaries = Binaries.of_runtime(kubernetes=tmp_path, etcd=tmp_path)
    assert binaries.path("etcdctl") == tmp_path / "etcdctl"
    with pytest.raises(BinariesError, match="failed to find kubelet: unknown program"):
        binaries.path("kubelet")
