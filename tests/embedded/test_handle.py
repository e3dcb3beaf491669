"""The handle of a cluster: written by the cluster, and read by its users."""

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


def test_load_returns_the_saved_handle(tmp_path: Path) -> None:
    handle = _handle(tmp_path)
    handle.save()
    loaded = Handle.load(tmp_path)
    assert loaded == handle
    assert (loaded.tenants_etcd.endpoint, loaded.tenants_etcd.credentials) == ("https://h:1", Path("/t"))


def test_tenants_etcd_raises_for_cluster_without_etcd(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="has no etcd for control planes"):
        _ = replace(_handle(tmp_path), tenants_etcd_endpoint=None).tenants_etcd


def test_load_raises_if_ready_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"failed to find a management cluster in .*ready\.json does not exist"):
        Handle.load(tmp_path)


def test_load_raises_for_invalid_ready_file(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text('{"pid": "x"}')
    with pytest.raises(EmbeddedError, match=r"failed to read .*ready\.json: "):
        Handle.load(tmp_path)


def test_logs_lists_only_nonempty_logs(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").write_text("x")
    for name, content in (("etcd", "y"), ("silent", "")):
        (tmp_path / "runtime" / name).mkdir(parents=True)
        (tmp_path / "runtime" / name / "log").write_text(content)
    assert _handle(tmp_path).logs == (tmp_path / "daemon.log", tmp_path / "runtime" / "etcd" / "log")
