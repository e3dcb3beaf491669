"""A kind cluster whose creation times out: the partial cluster is deleted, and never used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kplane.testing.backends import remove, start
from kplane.testing.choice import Choice
from kplane.testing.errors import KindTimedOut

CHOICE = Choice(backend="kind", reason="for a test", target="kplane-e2e", exists=False)


@pytest.fixture
def shared(stand_ins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The shared directory of a run, after a process has created a partial cluster."""
    monkeypatch.setattr("kplane.testing.kind._CREATION_SECONDS", 0.5)
    stand_ins.write_kubectl()
    stand_ins.write_kind_that_hangs()
    directory = tmp_path / "shared"
    directory.mkdir()
    expected_timeout = pytest.raises(
        KindTimedOut, match=r"failed to run `kind create cluster .*`: not done after 0\.5 s"
    )
    with expected_timeout, start(CHOICE, shared=directory, operators=False, environment=os.environ):
        pass
    return directory


@pytest.mark.parametrize("keep", ["", "1"])
def test_partial_cluster_is_deleted_even_if_clusters_are_kept(stand_ins, shared: Path, keep: str) -> None:
    """KIND_KEEP applies only to complete clusters."""
    remove(CHOICE, shared=shared, environment={**os.environ, "KIND_KEEP": keep})
    assert [call.split()[0] for call in stand_ins.calls("kind")] == ["get", "create", "delete"]


@pytest.mark.parametrize(("keep", "last"), [("", "delete"), ("1", "load")])
def test_next_process_deletes_partial_cluster_and_creates_anew(stand_ins, shared: Path, keep: str, last: str) -> None:
    stand_ins.write_kind(*stand_ins.clusters())
    with start(CHOICE, shared=shared, operators=False, environment=os.environ) as cluster:
        cluster.load_images("one:1")
    remove(CHOICE, shared=shared, environment={**os.environ, "KIND_KEEP": keep})
    calls = [" ".join(call.split()[:2]) for call in stand_ins.calls("kind")]
    assert calls[:5] == ["get clusters", "create cluster", "delete cluster", "get clusters", "create cluster"]
    assert calls[-1].split()[0] == last
