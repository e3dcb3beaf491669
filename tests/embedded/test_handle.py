"""What a cluster writes about itself is what others read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kplane.embedded.errors import EmbeddedError
from kplane.embedded.handle import Handle


def _handle(directory: Path) -> Handle:
    return Handle(
        directory=directory,
        pid=1,
        server="https://h:2",
        admin_kubeconfig=Path("/a"),
        operator_kubeconfig=Path("/o"),
        mcm_kubeconfig=Path("/m"),
        programs=(Path("/p"), Path("/q")),
        kubectl_program=Path("/p/kubectl"),
        tenants_etcd_endpoint="https://h:1",
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
    read = Handle.load(tmp_path)
    assert read == handle
    assert (read.tenants_etcd.endpoint, read.tenants_etcd.credentials) == ("https://h:1", Path("/t"))


def test_a_cluster_without_an_etcd_for_control_planes_says_so(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="has no etcd for control planes"):
        _ = replace(_handle(tmp_path), tenants_etcd_endpoint=None).tenants_etcd


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
