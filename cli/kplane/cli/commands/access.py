"""Commands for access to control planes: kubeconfigs that stay valid, and programs that run with them."""

from __future__ import annotations

import contextlib
import shlex
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplane.cli.commands.options import ContextOption, NameArgument, TimeoutOption
from kplane.cli.errors import Refused
from kplane.cli.output import print_text
from kplane.cli.session import run, say, work_on

if TYPE_CHECKING:
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer()

InternalOption = Annotated[
    bool,
    typer.Option(
        "--internal/--external", help="Address for the management cluster's pods, instead of that for people."
    ),
]


@app.command(short_help="Get the kubeconfig of a control plane.")
def kubeconfig(
    name: NameArgument,
    *,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add it to your kubeconfig as context kplane-NAME, and use that.")
    ] = False,
    static: Annotated[
        bool, typer.Option("--static", help="With credentials in it that end, for machines without kplane.")
    ] = False,
    internal: InternalOption = False,
    context: ContextOption = None,
) -> None:
    """Print the administrator's kubeconfig of a control plane.

    It asks `kplane credential` for the credentials, which are always the current ones.
    """

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.kubeconfigs import to_text, with_exec_credential
        from kplane.cli.own_kubeconfig import add_context

        if static and merge:
            raise Refused("--static and --merge do not go together: what is merged has to stay valid")
        published = await control_planes.kubeconfig(name, internal=internal)
        if static:
            print_text(published, nl=False)
            return
        uid = (await control_planes.get(name)).metadata.uid
        document = with_exec_credential(published, name=name, uid=uid, context=context, internal=internal)
        _renew_plugins()
        if not merge:
            print_text(to_text(document), nl=False)
            return
        added = add_context(document)
        back = f"; back: kubectl config use-context {shlex.quote(added.former)}" if added.former is not None else ""
        say(f"context kplane-{name} is in {added.path}, and is the current one{back}")
        if added.replaced is not None:
            say(f"warning: context kplane-{name} led to {name} of {added.replaced} before")
        print_text(f"kplane-{name}")

    work_on(context, work)


def _renew_plugins() -> None:
    """Rewrite contexts of a former version in the user's kubeconfig, because they run code of the working directory."""
    from kplane.cli.own_kubeconfig import renew_plugins

    try:
        paths = renew_plugins()
    except (OSError, Refused) as error:
        say(f"warning: failed to renew the contexts of control planes in your kubeconfig: {error}")
        return
    if paths:
        files = ", ".join(str(path) for path in paths)
        say(f"the contexts of control planes in {files} are renewed; they ran Python files of the current folder")


@app.command(short_help="Print the credential of a control plane for kubectl.")
def credential(
    name: NameArgument,
    *,
    internal: InternalOption = False,
    uid: Annotated[
        str | None,
        typer.Option("--uid", help="Uid of the control plane: keep the credential under it.", show_default=False),
    ] = None,
    context: ContextOption = None,
) -> None:
    """Print the administrator's current credential as kubectl wants it of an exec plugin.

    If the management cluster does not answer, print the one that was kept, while it is valid.
    """

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.credential_cache import hand_out_last
        from kplane.cli.exec_plugin import print_credential
        from kplane.provider import Unreachable

        try:
            config = await control_planes.config(name, internal=internal)
        except Unreachable as error:
            kept = hand_out_last(uid) if uid is not None else None
            if kept is None:
                raise
            say(f"warning: {error}; the credential that was kept is used until it ends")
            print_text(kept)
            return
        print_text(print_credential(config, uid=uid))

    work_on(context, work)


@app.command(short_help="Print a bearer token of a control plane.")
def token(
    name: NameArgument,
    *,
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration",
            metavar="DURATION",
            help="Issue a new one that is valid so long, such as 1h or 90m.  [default: the published one]",
            show_default=False,
        ),
    ] = None,
    internal: InternalOption = False,
    context: ContextOption = None,
) -> None:
    """Print a bearer token of the administrator of a control plane.

    Its API server may shorten the life of a new one. A leaked token ends if you delete its ServiceAccount.
    """
    lifetime = _lifetime(duration) if duration is not None else None

    async def work(control_planes: ControlPlanes) -> None:
        if lifetime is None:
            print_text(await control_planes.token(name, internal=internal))
            return
        from kplane.cli.tenants import reached
        from kplane.client.tokens import issue_token

        async with reached(control_planes, name, internal=internal, context=context) as tenant:
            print_text(await issue_token(tenant, seconds=round(lifetime.total_seconds())))

    work_on(context, work)


@app.command(short_help="Print how a machine joins a control plane as a node.")
def join_token(
    name: NameArgument,
    *,
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="How long the token is valid.")] = "1h",
    internal: InternalOption = False,
    context: ContextOption = None,
) -> None:
    """Make a bootstrap token, and print the commands by which a machine joins a control plane as a node.

    The class of the control plane needs the add-on kubeadm-join, and controllers that sign certificates.
    """
    lifetime = _lifetime(ttl)

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.joining import join_commands
        from kplane.cli.tenants import reached

        async with reached(control_planes, name, internal=internal, context=context) as tenant:
            commands = await join_commands(
                tenant,
                control_plane=await control_planes.get(name),
                kubeconfigs=[await control_planes.kubeconfig(name, internal=inside) for inside in (True, False)],
                lifetime=lifetime,
            )
        print_text(commands, nl=False)
        say(f"run this as root on the machine, within {ttl}; it is a secret")
        if not await control_planes.registrations(name):
            say(f"no controllers run for {name}, so no certificate of a node is signed: kplane register {name}")

    work_on(context, work)


def _lifetime(text: str) -> timedelta:
    from kplane.api.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command(
    short_help="Run a command, or a shell, with a control plane.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def connect(
    name: NameArgument,
    arguments: typer.Context,
    *,
    internal: InternalOption = False,
    timeout: TimeoutOption = 300.0,
    context: ContextOption = None,
) -> None:
    """Run a command with KUBECONFIG set to a control plane: kplane connect NAME -- kubectl get pods.

    Without a command, run your shell. The kubeconfig is gone afterwards. If the address is known inside of the
    management cluster alone, a port of this machine is forwarded to it meanwhile.
    """
    document: dict[str, Any] = {}

    async def work(control_planes: ControlPlanes) -> None:
        nonlocal document
        from kplane.cli.kubeconfigs import with_exec_credential

        # A name that does not exist ends the command at once.
        await control_planes.get(name)
        uid = (await control_planes.wait(name, timeout_seconds=timeout)).metadata.uid
        published = await control_planes.restored_kubeconfig(name, internal=internal, timeout_seconds=timeout)
        document = with_exec_credential(published, name=name, uid=uid, context=context, internal=internal)
        _renew_plugins()

    work_on(context, work)

    # Only the first `--`, because the command may have its own, as `kubectl exec POD -- COMMAND` has.
    command = arguments.args[1:] if arguments.args[:1] == ["--"] else arguments.args
    if not command:
        say(f"a shell for {name}; leave it by `exit`")
    run(lambda: _run_with(document, command, context=context, is_outside=not internal))


def _run_with(document: dict[str, Any], command: list[str], *, context: str | None, is_outside: bool) -> None:
    """Run a command with a kubeconfig, and exit with its exit code; 127 if the program does not exist."""
    from kplane.cli.kubeconfigs import management, run_with, to_text
    from kplane.cli.port_forward import forwarded, is_inside

    with contextlib.ExitStack() as stack:
        if is_outside and is_inside(document):
            document = stack.enter_context(forwarded(document, to=management(context)))
        try:
            raise typer.Exit(run_with(to_text(document), command))
        except FileNotFoundError as error:
            say(f"error: there is no program {error.filename}", error=True)
            raise typer.Exit(127) from None
        finally:
            sys.stdout.flush()
