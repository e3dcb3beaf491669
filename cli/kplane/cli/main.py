"""`kplane`, and `kubectl kplane`. Commands import what they need themselves, so that `--help` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "main"]

app = typer.Typer(
    help="Real Kubernetes control planes as objects, and one controller manager for all of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="Where the demo keeps data and logs.  [default: $XDG_STATE_HOME/kplane/demo]",
        show_default=False,
        file_okay=False,
    ),
]


@app.command(short_help="Show the whole suite at work.")
def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running; `kplane demo-down` ends it.")] = False,
    directory: _Directory = None,
) -> None:
    """Show the whole suite at work on an embedded management cluster, each step verified."""
    from kplane.cli.demo.run import run_demo
    from kplane.cli.demo.site import default_directory

    raise typer.Exit(run_demo(directory or default_directory(), keep=keep))


@app.command(short_help="End a demo that was kept.")
def demo_down(*, directory: _Directory = None) -> None:
    """End a demo that was kept, or what a crashed one left, and remove its directory."""
    from kplane.cli.demo.down import end_demo
    from kplane.cli.demo.site import default_directory

    raise typer.Exit(end_demo(directory or default_directory()))


@app.command(short_help="Get the Kubernetes programs.")
def binaries() -> None:
    """Get the Kubernetes and etcd programs where they are missing, and print the directories they are in."""
    from kplane.binaries.programs import main as print_directories

    raise typer.Exit(print_directories())


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
