"""A cluster of kind whose creation takes too long: nobody takes what there is of it for a cluster."""

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
    """The directory of a run in which a process has created half a cluster."""
    monkeypatch.setattr("kplane.testing.kind._CREATION_SECONDS", 0.5)
    stand_ins.write_kubectl()
    stand_ins.write_kind_that_hangs()
    directory = tmp_path / "shared"
    directory.mkdir()
    took_too_long = pytest.raises(KindTimedOut, match=r"failed to run `kind create cluster .*`: not done after 0\.5 s")
    with took_too_long, start(CHOICE, shared=directory, operators=False, environment=os.environ):
        pass
    return directory


@pytest.mark.parametrize("keep", ["", "1"])
def test_goes_at_the_end(stand_ins, shared: Path, keep: str) -> None:
    """KIND_KEEP is for clusters."""
    remove(CHOICE, shared=shared, environment={**os.environ, "KIND_KEEP": keep})
    assert [call.split()[0] for call in stand_ins.calls("kind")] == ["get", "create", "delete"]


@pytest.mark.parametrize(("keep", "last"), [("", "delete"), ("1", "load")])
def test_the_next_process_of_the_run_creates_it_anew(stand_ins, shared: Path, keep: str, last: str) -> None:
    stand_ins.write_kind(*stand_ins.clusters())
    with start(CHOICE, shared=shared, operators=False, environment=os.environ) as cluster:
        cluster.load_images("one:1")
    remove(CHOICE, shared=shared, environment={**os.environ, "KIND_KEEP": keep})
    calls = [" ".join(call.split()[:2]) for call in stand_ins.calls("kind")]
    assert calls[:5] == ["get clusters", "create cluster", "delete cluster", "get clusters", "create cluster"]
    assert calls[-1].split()[0] == last
