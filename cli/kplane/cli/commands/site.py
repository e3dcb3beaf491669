"""Commands that run kplane on this machine, and print its version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplane.cli.choices import Driver
from kplane.cli.output import print_text
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
_Driver = Annotated[Driver, typer.Option("--driver", help="Processes of this machine, or a cluster of kind.")]


@app.command(short_help="Start kplane on this machine.")
def up(
    *,
    driver: _Driver = Driver.PROCESS,
    directory: _Directory = None,
    fake_nodes: Annotated[
        bool, typer.Option("--fake-nodes", help="Let control planes have nodes without machines, played by kwok.")
    ] = False,
) -> None:
    """Start a management cluster with both operators, and use its context. Again is fine: what runs stays.

    Processes also have the gateway. A cluster of kind needs docker, and a clone of kplane for its images.
    """
    if driver is Driver.KIND and (directory is not None or fake_nodes):
        raise typer.BadParameter("--directory and --fake-nodes are for --driver process")

    def start() -> None:
        if driver is Driver.KIND:
            from kplane.cli.kind_cluster import CONTEXT, find_clone, start_on_kind

            start_on_kind(find_clone(Path(__file__)), report=say)
            print_text(CONTEXT)
        else:
            from kplane.cli.extras import require_operators
            from kplane.cli.local import start_local

            require_operators()
            print_text(start_local(directory, fake_nodes=fake_nodes, report=say))

    run(start)


@app.command(short_help="End what `kplane up` started.")
def down(
    *,
    driver: _Driver = Driver.PROCESS,
    directory: _Directory = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the data of all control planes, too.")] = False,
) -> None:
    """End what `kplane up` started, and remove its context. The data of processes stay for the next `kplane up`."""
    if driver is Driver.KIND and directory is not None:
        raise typer.BadParameter("--directory is for --driver process")

    def end() -> None:
        if driver is Driver.KIND:
            from kplane.cli.kind_cluster import end_on_kind

            end_on_kind(purge=purge, report=say)
            return
        from kplane.cli.local import end_local

        end_local(directory, purge=purge, report=say)

    run(end)


@app.command(short_help="Print the version.")
def version() -> None:
    """Print the versions of kplane and of the Kubernetes that it runs."""
    from importlib.metadata import version as installed

    from kplane.binaries.upstreams import KUBERNETES

    print_text(f"kplane {installed('kplane')}, Kubernetes {KUBERNETES.version}")
