"""The names of the Go project's commands lead to ours."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kplane.cli.commands.go_names import translated
from kplane.cli.main import app


@pytest.mark.parametrize(
    ("typed", "run"),
    [
        ("create cluster acme", "create-cluster acme"),
        ("create cluster --context kplane acme", "create-cluster --context kplane acme"),
        ("create cluster --no-wait acme", "create-cluster --no-wait acme"),
        ("create cluster --context=kplane -- acme", "create-cluster --context=kplane -- acme"),
        ("cc acme", "create-cluster acme"),
        ("get clusters", "list"),
        ("get clusters -o json", "list -o json"),
        # These are about control planes called so.
        ("create cluster", "create cluster"),
        ("create cluster --no-wait", "create cluster --no-wait"),
        ("create cluster --class small", "create cluster --class small"),
        ("create cluster --class=small --no-wait", "create cluster --class=small --no-wait"),
        (
            "create cluster --context x --mode Dedicated --fake-nodes 3",
            "create cluster --context x --mode Dedicated --fake-nodes 3",
        ),
        ("create acme", "create acme"),
        ("get cluster", "get cluster"),
        ("get-credentials acme", "get-credentials acme"),
        ("", ""),
    ],
)
def test_two_words_become_one(typed: str, run: str) -> None:
    assert translated(typed.split()) == run.split()


def test_help_does_not_list_them() -> None:
    listed = CliRunner().invoke(app, ["--help"]).output
    assert "get-credentials" not in listed
    assert "create-cluster" not in listed
    assert "\n  config " not in listed
    assert CliRunner().invoke(app, ["get-credentials", "--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["config", "use-context", "--help"]).exit_code == 0
