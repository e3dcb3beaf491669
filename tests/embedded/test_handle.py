"""What a cluster writes about itself is what others read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.embedded.errors import EmbeddedError
from kplane.embedded.etcdctl import Etcdctl
from kplane.embedded.handle import Handle


def _handle(directory: Path) -> Handle:
    etcdctl = Etcdctl(
        program=Path("/p/etcdctl"), endpoint="https://h:1", ca=Path("/ca"), certificate=Path("/c"), key=Path("/k")
    )
    return Handle(
        directory=directory,
        pid=1,
        server="https://h:2",
        admin_kubeconfig=Path("/a"),
        operator_kubeconfig=Path("/o"),
        mcm_kubeconfig=Path("/m"),
        programs=(Path("/p"), Path("/q")),
        kubectl_program=Path("/p/kubectl"),
        tenants_etcd=etcdctl,
        tenants_etcd_credentials=Path("/t"),
        operator_directory=directory / "operator",
        mcm_directory=directory / "mcm",
        operator_url=None,
        mcm_url="http://h:3",
        seconds={"total": 1.5},
    )


def test_reads_back_what_was_saved(tmp_path: Path) -> None:
    handle = _handle(tmp_path)
    handle.save()
    assert Handle.load(tmp_path) == handle


def test_says_where_none_is_ready(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"failed to find a management cluster in .*ready\.json does not exist"):
        Handle.load(tmp_path)


def test_refuses_what_is_no_handle(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text('{"pid": "x"}')
    with pytest.raises(EmbeddedError, match=r"failed to read .*ready\.json: "):
        Handle.load(tmp_path)


def test_finds_logs_with_something_in_them(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").write_text("x")
    for name, content in (("etcd", "y"), ("silent", "")):
        (tmp_path / "runtime" / name).mkdir(parents=True)
        (tmp_path / "runtime" / name / "log").write_text(content)
    assert _handle(tmp_path).logs == (tmp_path / "daemon.log", tmp_path / "runtime" / "etcd" / "log")
