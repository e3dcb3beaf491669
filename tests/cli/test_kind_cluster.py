"""When `kplane up --driver kind` and `kplane down --driver kind` are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kplane.cli import kind_cluster
from kplane.cli.errors import Refused
from kplane.cli.kind_cluster import end_on_kind, find_clone
from kplane.cli.main import app


def test_the_clone_is_the_one_of_the_package() -> None:
    assert find_clone(Path(kind_cluster.__file__)) == Path(__file__).parents[2]


def test_without_a_clone_it_says_where_images_come_from(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not published, so they are built from a clone"):
        find_clone(tmp_path / "site-packages" / "kplane" / "cli" / "kind_cluster.py")


def test_data_of_a_cluster_are_deleted_only_if_asked_for() -> None:
    with pytest.raises(Refused, match="kplane down --driver kind --purge"):
        end_on_kind(purge=False, report=print)


@pytest.mark.parametrize(
    "options",
    [["up", "--fake-nodes"], ["up", "--directory", "here"], ["down", "--directory", "here"]],
    ids=" ".join,
)
def test_options_of_processes_are_not_taken_for_a_cluster(options: list[str]) -> None:
    ran = CliRunner().invoke(app, [*options, "--driver", "kind"])
    assert ran.exit_code == 2
    assert "--driver process" in ran.output
