"""Hidden commands with the names of the Go project kplane."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from kplane.cli.commands import access, control_planes
from kplane.cli.commands.options import ContextOption, NameArgument
from kplane.cli.output import print_text
from kplane.cli.session import run

__all__ = ["app", "config", "translated"]

app = typer.Typer()
config = typer.Typer(name="config", hidden=True, no_args_is_help=True)

_CREATE_CLUSTER = "create-cluster"


def translated(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `create cluster NAME` and `get clusters` as commands of a single word.

    `kplane create cluster` stays, because it creates a control plane named `cluster`.
    """
    match list(arguments):
        case ["create", "cluster", *rest] if _has_name(rest):
            return [_CREATE_CLUSTER, *rest]
        case ["cc", *rest]:
            return [_CREATE_CLUSTER, *rest]
        case ["get", "clusters", *rest]:
            return ["list", *rest]
        case others:
            return others


def _has_name(rest: Sequence[str]) -> bool:
    """Whether these arguments of `kplane create` have a word besides options and their values."""
    group = typer.main.get_group(control_planes.app)
    valued = {
        name
        for parameter in group.commands["create"].params
        if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
        for name in parameter.opts
    }
    words = iter(rest)
    for word in words:
        if word == "--":
            return next(words, None) is not None
        if not word.startswith("-"):
            return True
        if word in valued:
            next(words, None)
    return False


@app.command(_CREATE_CLUSTER, hidden=True)
def create_cluster(name: NameArgument, *, context: ContextOption = None) -> None:
    """Create a control plane, wait until it can be used, and use its context."""
    control_planes.create(name, context=context)
    access.kubeconfig(name, merge=True, context=context)


@app.command(hidden=True)
def get_credentials(name: NameArgument, *, context: ContextOption = None) -> None:
    """Add the kubeconfig of a control plane to yours, and use its context."""
    access.kubeconfig(name, merge=True, context=context)


@config.command(hidden=True)
def use_context(name: NameArgument) -> None:
    """Use the context of a control plane that is in your kubeconfig, or any other one."""

    def use() -> None:
        from kplane.cli.own_kubeconfig import choose_context

        print_text(choose_context(f"kplane-{name}", name))

    run(use)
