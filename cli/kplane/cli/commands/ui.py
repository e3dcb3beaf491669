"""Command that shows the control planes in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import ContextOption
from kplane.cli.output import print_text
from kplane.cli.session import say, work_on

if TYPE_CHECKING:
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer()


@app.command(short_help="Show the control planes in a browser.")
def ui(
    *,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of this machine; 0 takes a free one.")
    ] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in your browser.")] = True,
    context: ContextOption = None,
) -> None:
    """Serve a page with all control planes on this machine, until Ctrl-C.

    It shows what your kubeconfig may read, and changes nothing. The key in its address keeps other users away.
    """

    async def work(control_planes: ControlPlanes) -> None:
        import contextlib

        from kplane.cli.ui.opening import redirecting
        from kplane.cli.ui.server import serve

        with contextlib.ExitStack() as stack:

            def ready(address: str) -> None:
                print_text(address)
                say("serving until Ctrl-C")
                if open_browser:
                    typer.launch(str(stack.enter_context(redirecting(address))))

            await serve(control_planes, port=port, ready=ready)

    work_on(context, work)
