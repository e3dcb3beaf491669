"""Command that adopts an API server that kplane does not run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import ContextOption, NameArgument, TimeoutOption, WaitOption
from kplane.cli.output import print_text
from kplane.cli.session import continuing, say, work_on

if TYPE_CHECKING:
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer()


@app.command(short_help="Adopt an API server that is there already.")
def adopt(
    name: NameArgument,
    *,
    kubeconfig: Annotated[
        Path,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig of an administrator there, with the credentials in it.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ],
    kubeconfig_context: Annotated[
        str | None,
        typer.Option("--kubeconfig-context", metavar="CONTEXT", help="Context in it.  [default: its current one]"),
    ] = None,
    external: Annotated[
        str | None, typer.Option("--external", metavar="URL", help="URL for people, if it is another one.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", help="Namespace for the credentials, where the operator may read Secrets.")
    ] = "kplane-system",
    wait: WaitOption = True,
    timeout: TimeoutOption = 300.0,
    context: ContextOption = None,
) -> None:
    """Adopt an API server that kplane does not run: create its ControlPlaneEndpoint, Secret and ControlPlane.

    Its mode is Virtual if its URL ends with /clusters/PATH/control-plane, otherwise Dedicated.
    """

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.provider import ClusterConfig

        config = ClusterConfig.load(kubeconfig, context=kubeconfig_context, exec_plugins=True)
        await control_planes.adopt(name, config, namespace=namespace, external=external)
        print_text(f"controlplane/{name} created")
        if not wait:
            return
        with continuing(f"{name} is still being adopted; follow it: kplane get {name} --watch"):
            control_plane = await control_planes.wait(name, timeout_seconds=timeout)
        print_text(f"controlplane/{name} is {control_plane.status.phase}")
        say(f"run controllers for it, if it has none: kplane register {name}")

    work_on(context, work)
