"""Run kplane on this machine, and say what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplane.cli.session import run, say

__all__ = ["app"]

app = typer.Typer()

_Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="Directory for data and logs.  [default: $XDG_STATE_HOME/kplane/local]",
        show_default=False,
        file_okay=False,
    ),
]


@app.command(short_help="Start kplane on this machine.")
def up(
    *,
    directory: _Directory = None,
    fake_nodes: Annotated[
        bool, typer.Option("--fake-nodes", help="Let control planes have nodes without machines, played by kwok.")
    ] = False,
) -> None:
    """Start a management cluster with both operators and the gateway as processes, as context `kplane`.

    Again is fine: what runs stays.
    """

    def start() -> None:
        from kplane.cli.local import start_local

        start_local(directory, fake_nodes=fake_nodes, report=say)

    run(start)
    typer.echo("kplane")


@app.command(short_help="End what `kplane up` started.")
def down(
    *,
    directory: _Directory = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the data of all control planes, too.")] = False,
) -> None:
    """End what `kplane up` started, and remove context `kplane`. The data stay for the next `kplane up`."""

    def end() -> None:
        from kplane.cli.local import end_local

        end_local(directory, purge=purge, report=say)

    run(end)


@app.command(short_help="Print the version.")
def version() -> None:
    """Print the versions of kplane and of the Kubernetes that it runs."""
    from importlib.metadata import version as installed

    from kplane.binaries.upstreams import KUBERNETES

    typer.echo(f"kplane {installed('kplane')}, Kubernetes {KUBERNETES.version}")
