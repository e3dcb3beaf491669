"""Command names of the Go project are translated to commands of kplane."""

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
        # In these commands, `cluster` is the name of a control plane.
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
def test_go_command_names_are_translated(typed: str, run: str) -> None:
    assert translated(typed.split()) == run.split()


def test_help_hides_go_command_names() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert "get-credentials" not in output
    assert "create-cluster" not in output
    assert "\n  config " not in output
    assert CliRunner().invoke(app, ["get-credentials", "--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["config", "use-context", "--help"]).exit_code == 0
