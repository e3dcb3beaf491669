"""Commands that diagnose problems, and collect data for support."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import ContextOption
from kplane.cli.output import print_text
from kplane.cli.printable import printable
from kplane.cli.session import say, work_on

if TYPE_CHECKING:
    from kplane.cli.doctor import Examination
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer()


class _Form(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.command(short_help="Find what is wrong, and the command that mends it.")
def doctor(
    *,
    output: Annotated[_Form, typer.Option("--output", "-o", help="How the result is printed.")] = _Form.TEXT,
    context: ContextOption = None,
) -> None:
    """Find what is wrong on the management cluster and with its control planes, and the command that mends it.

    It reads objects and asks the programs of kplane, and connects to no control plane. It ends with code 1 if it finds
    an error.
    """

    async def work(control_planes: ControlPlanes) -> None:
        import json

        from kplane.cli.doctor import examine
        from kplane.cli.doctor.survey import look
        from kplane.cli.kubeconfigs import management

        survey = await look(control_planes.client, cluster=management(context))
        examination = await examine(survey)
        if output is _Form.JSON:
            print_text(json.dumps(examination.to_json(), indent=2))
        else:
            _print(examination)
        if examination.failed:
            raise typer.Exit(1)

    work_on(context, work)


def _print(examination: Examination) -> None:
    for _, finding in examination.findings:
        # A line feed in a message could fake a finding with a command.
        problem = printable(f"{finding.severity}: {finding.object}: {finding.problem}")
        print_text(problem, highlighted=finding.severity)
        print_text(printable(f"  {finding.command}"))
    if not examination.findings:
        print_text("nothing is wrong")


@app.command(short_help="Collect what support needs, without secrets.")
def support_bundle(
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="File to write.  [default: kplane-support-TIME.tar.gz]", show_default=False, dir_okay=False
        ),
    ] = None,
    context: ContextOption = None,
) -> None:
    """Write a tar.gz with objects, Events, states of pods, versions, logs and what `kplane doctor` finds.

    It reads no Secrets, and removes what looks like a token or a private key. Read it before you hand it on.
    """

    async def work(control_planes: ControlPlanes) -> None:
        from datetime import UTC, datetime

        from kplane.cli.bundle import collect
        from kplane.cli.kubeconfigs import management

        path = file or Path(f"kplane-support-{datetime.now(UTC):%Y%m%d%H%M%S}.tar.gz")
        bundle = await collect(control_planes.client, cluster=management(context), report=say)
        bundle.write(path)
        print_text(str(path))

    work_on(context, work)
