"""Commands that install kplane on a cluster, and upgrade it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplane.cli.commands.options import ContextOption, WaitOption
from kplane.cli.session import run, say

__all__ = ["app"]

app = typer.Typer()

_Values = Annotated[
    list[Path] | None,
    typer.Option(
        "--values", "-f", help="File of values of the chart; may be given again.", exists=True, dir_okay=False
    ),
]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One value of the chart; may be given again.")
]
_Timeout = Annotated[int, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait.")]


@app.command(short_help="Install kplane on a cluster.")
def init(
    *,
    values: _Values = None,
    assigned: _Set = None,
    wait: WaitOption = True,
    timeout: _Timeout = 600,
    context: ContextOption = None,
) -> None:
    """Install the chart of this version on a cluster, as release `kplane` of namespace `kplane-system`."""

    def install() -> None:
        from kplane.cli.installation import Installation
        from kplane.cli.kubeconfigs import management

        Installation.on(management(context), report=say).install(_options(values, assigned, wait=wait, timeout=timeout))

    run(install)


@app.command(short_help="Upgrade kplane on a cluster.")
def upgrade(
    *,
    values: _Values = None,
    assigned: _Set = None,
    wait: WaitOption = True,
    timeout: _Timeout = 1200,
    context: ContextOption = None,
) -> None:
    """Upgrade what `kplane init` installed to this version. Values that you set before stay.

    The chart saves the shared etcd first, and changes nothing if that fails.
    """

    def change() -> None:
        from kplane.cli.installation import Installation
        from kplane.cli.kubeconfigs import management

        Installation.on(management(context), report=say).upgrade(_options(values, assigned, wait=wait, timeout=timeout))

    run(change)


def _options(values: list[Path] | None, assigned: list[str] | None, *, wait: bool, timeout: int) -> list[str]:
    """Return the options of helm."""
    files = [option for value in values or [] for option in ("--values", str(value))]
    settings = [option for value in assigned or [] for option in ("--set", value)]
    return [*files, *settings, "--timeout", f"{timeout}s", *(["--wait"] if wait else [])]
