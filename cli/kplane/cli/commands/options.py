"""Arguments and options of several commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from kplane.cli.output import Format

__all__ = ["ContextOption", "Mode", "NameArgument", "OutputOption", "TimeoutOption", "WaitOption", "YesOption"]


class Mode(StrEnum):
    """Values of `--mode`."""

    VIRTUAL = "Virtual"
    DEDICATED = "Dedicated"


def _names(incomplete: str) -> list[str]:
    """Return the names of control planes for completion; empty if the cluster does not answer within 2 seconds."""
    import asyncio

    from kplane.cli.kubeconfigs import management
    from kplane.client import ClientError, ControlPlanes
    from kplane.provider import ClusterConfig, ProviderError

    async def found() -> list[str]:
        cluster = management(None)
        config = ClusterConfig.default(context=cluster.context, environment=cluster.environment)
        async with asyncio.timeout(2.0), ControlPlanes.connect(config) as control_planes:
            return [
                control_plane.name
                for control_plane in await control_planes.list()
                if control_plane.name.startswith(incomplete)
            ]

    try:
        return asyncio.run(found())
    except (ClientError, OSError, ProviderError, TimeoutError):
        return []


NameArgument = Annotated[
    str, typer.Argument(help="Name of the control plane.", show_default=False, autocompletion=_names)
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Context of the management cluster in your kubeconfig.  [default: the current one]",
        envvar="KPLANE_CONTEXT",
        show_default=False,
        show_envvar=False,
    ),
]
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How the result is printed.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
