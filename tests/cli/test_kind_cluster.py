"""Refusals of `kplane up --driver kind` and `kplane down --driver kind`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kplane.cli import kind_cluster
from kplane.cli.errors import Refused
from kplane.cli.kind_cluster import end_on_kind, find_clone
from kplane.cli.main import app


def test_find_clone_returns_repository_of_the_package() -> None:
    assert find_clone(Path(kind_cluster.__file__)) == Path(__file__).parents[2]


def test_find_clone_without_clone_names_source_of_images(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not published, so they are built from a clone"):
        find_clone(tmp_path / "site-packages" / "kplane" / "cli" / "kind_cluster.py")


def test_end_on_kind_without_purge_is_refused() -> None:
    with pytest.raises(Refused, match="kplane down --driver kind --purge"):
        end_on_kind(purge=False, report=print)


@pytest.mark.parametrize(
    "options",
    [["up", "--fake-nodes"], ["up", "--directory", "here"], ["down", "--directory", "here"]],
    ids=" ".join,
)
def test_process_options_are_refused_with_driver_kind(options: list[str]) -> None:
    result = CliRunner().invoke(app, [*options, "--driver", "kind"])
    assert result.exit_code == 2
    assert "--driver process" in result.output
