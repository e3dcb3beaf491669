"""Commands `kplane` and `kubectl kplane`.

Each command imports its modules when it runs, so that `--help` stays fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kplane.cli.commands import (
    access,
    adoption,
    backup,
    control_planes,
    diagnosis,
    go_names,
    installation,
    observation,
    operations,
    site,
    ui,
)

__all__ = ["app", "main"]

app = typer.Typer(
    help=(
        "Real Kubernetes control planes as objects, and one controller manager for all of them.\n\n"
        "Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 not found, 4 not in time, 5 the management cluster"
        " does not answer."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

for group in (site, installation, control_planes, adoption, access, operations, observation, diagnosis, ui, go_names):
    app.registered_commands += group.app.registered_commands
app.add_typer(backup.app)
app.add_typer(go_names.config)

_Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="Directory for data and logs.  [default: $XDG_STATE_HOME/kplane/demo]",
        show_default=False,
        file_okay=False,
    ),
]


@app.command(short_help="Show on this machine what kplane does.")
def demo(
    *,
    clean: Annotated[bool, typer.Option("--clean", help="End everything afterwards.")] = False,
    control_planes: Annotated[int, typer.Option("--control-planes", min=5, help="How many to create.")] = 200,
    directory: _Directory = None,
) -> None:
    """Start kplane on this machine, show what it does, and verify each step.

    Leaves everything running as context `kplane.demo`; `kplane demo-down` ends it.
    """
    from kplane.cli.extras import require_operators
    from kplane.cli.session import run

    run(require_operators)

    from kplane.cli.demo.run import run_demo
    from kplane.cli.demo.site import default_directory

    raise typer.Exit(run_demo(directory or default_directory(), clean=clean, count=control_planes))


@app.command(short_help="End a demo.")
def demo_down(*, directory: _Directory = None) -> None:
    """End a demo that was left running, or the processes of a crashed one, and remove its directory and context."""
    from kplane.cli.demo.down import end_demo
    from kplane.cli.demo.site import default_directory

    raise typer.Exit(end_demo(directory or default_directory()))


@app.command(short_help="Obtain the Kubernetes programs.")
def binaries() -> None:
    """Obtain the Kubernetes and etcd programs if they are missing, and print their directories."""
    from kplane.binaries.programs import main as print_directories

    raise typer.Exit(print_directories())


def main() -> None:
    """Run the command line."""
    app(go_names.translated(sys.argv[1:]))


if __name__ == "__main__":
    main()
