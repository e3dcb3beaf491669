"""Commands that create, show and delete control planes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import (
    ContextOption,
    Mode,
    NameArgument,
    OutputOption,
    TimeoutOption,
    WaitOption,
    YesOption,
)
from kplane.cli.errors import Refused
from kplane.cli.output import Format, print_text
from kplane.cli.session import continuing, say, work_on

if TYPE_CHECKING:
    from kplane.api import ControlPlane
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer()


@app.command(short_help="Create a control plane.")
def create(
    name: NameArgument,
    *,
    class_name: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="Its ControlPlaneClass.", show_default=False)
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="Virtual or Dedicated.  [default: Virtual]", show_default=False)
    ] = None,
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Control plane to clone, or snapshot to restore by --identity-secret.",
            show_default=False,
        ),
    ] = None,
    identity_secret: Annotated[
        str | None,
        typer.Option(
            "--identity-secret",
            metavar="SECRET",
            help="Secret in the operator's namespace with the private key of the snapshot, in its key `identity`.",
            show_default=False,
        ),
    ] = None,
    fake_nodes: Annotated[
        int | None,
        typer.Option(
            "--fake-nodes",
            metavar="N",
            min=1,
            max=9999,
            help="Nodes without machines, with controllers and a scheduler; needs `kplane up --fake-nodes`.",
            show_default=False,
        ),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = 300.0,
    context: ContextOption = None,
) -> None:
    """Create a control plane, and wait until it can be used."""

    async def work(control_planes: ControlPlanes) -> None:
        annotations = await _ask_for_nodes(control_planes, fake_nodes)
        begin = await _beginning(control_planes, origin, identity_secret)
        mode_name = mode.value if mode is not None else None
        await begin(name, class_name=class_name, mode=mode_name, annotations=annotations)
        print_text(f"controlplane/{name} created")
        if fake_nodes is not None:
            await control_planes.register(name, services=("controllers", "scheduler"), profile="Full")
        if not wait:
            return
        with continuing(f"{name} is still being created; follow it: kplane get {name} --watch"):
            control_plane = await control_planes.wait(name, timeout_seconds=timeout)
            if fake_nodes is not None:
                await control_planes.wait_for_nodes(name, fake_nodes, timeout_seconds=timeout)
                control_plane = await control_planes.get(name)
        print_text(f"controlplane/{name} is {control_plane.status.phase}")
        say(f"use it: kplane connect {name} -- kubectl get namespaces")

    work_on(context, work)


async def _beginning(
    control_planes: ControlPlanes, origin: str | None, identity_secret: str | None
) -> Callable[..., Awaitable[ControlPlane]]:
    """Return the function that creates a control plane: empty, as a clone, or from a snapshot.

    Raises Refused if `origin` and `identity_secret` do not fit together.
    """
    from kplane.client import NoControlPlane

    if origin is None:
        if identity_secret is not None:
            raise Refused("--identity-secret is the key of a snapshot: name the snapshot by --from")
        return control_planes.create
    if identity_secret is not None:
        return partial(control_planes.restore, origin, identity_secret=identity_secret)
    try:
        await control_planes.get(origin)
    except NoControlPlane:
        if any(snapshot.name == origin for snapshot in await control_planes.snapshots()):
            raise Refused(
                f"{origin} is a snapshot: give the Secret with its private key by --identity-secret"
            ) from None
        raise
    return partial(control_planes.clone, origin)


async def _ask_for_nodes(control_planes: ControlPlanes, count: int | None) -> dict[str, str]:
    """Return the annotations that request fake nodes. Raises Refused if the management cluster has no fake nodes."""
    from kplane.api.names import FAKE_NODES_ANNOTATION

    if count is None:
        return {}
    if not await control_planes.has_fake_nodes():
        raise Refused("this management cluster has no fake nodes; start one with `kplane up --fake-nodes`")
    return {FAKE_NODES_ANNOTATION: str(count)}


@app.command(short_help="Clone a control plane.")
def clone(
    original: Annotated[str, typer.Argument(help="Control plane that is cloned.")],
    name: Annotated[str, typer.Argument(help="Name of the new one.")],
    *,
    wait: WaitOption = True,
    timeout: TimeoutOption = 300.0,
    context: ContextOption = None,
) -> None:
    """Create a control plane with the objects of another one, fresh uids, and keys of its own."""
    create(name, origin=original, wait=wait, timeout=timeout, context=context)


@app.command(short_help="Delete a control plane.")
def delete(
    name: NameArgument,
    *,
    yes: YesOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 300.0,
    context: ContextOption = None,
) -> None:
    """Delete a control plane. Says what that destroys, and asks for its name."""

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.credential_cache import forget
        from kplane.cli.kubeconfigs import current_context, management

        cluster = management(context).context or current_context()
        control_plane = await control_planes.get(name)
        say(await _consequences(control_planes, control_plane))
        if not yes:
            _ask_for(name)
        with continuing(f"if the deletion was asked for, it continues; see how far it is: kplane describe {name}"):
            await control_planes.delete(name, wait=wait, timeout_seconds=timeout)
        forget(control_plane.metadata.uid or "")
        _remove_contexts(control_plane, cluster=cluster, is_gone=wait)
        print_text(f"controlplane/{name} deleted" if wait else f"controlplane/{name} is being deleted")
        if control_plane.spec.endpoint_ref is not None:
            endpoint = control_plane.spec.endpoint_ref.name
            say(f"the endpoint stays, with the credentials: kubectl delete controlplaneendpoint {endpoint}")

    work_on(context, work)


def _remove_contexts(control_plane: ControlPlane, *, cluster: str | None, is_gone: bool) -> None:
    """Remove the contexts of a deleted control plane from the user's kubeconfig, and report that or the failure."""
    from kplane.cli.own_kubeconfig import remove_control_plane
    from kplane.provider import ProviderError

    name = control_plane.name
    try:
        removed = remove_control_plane(name, uid=control_plane.metadata.uid, context=cluster)
    except (OSError, ProviderError, Refused) as error:
        say(f"warning: the context of {name} stays in your kubeconfig: {error}")
        return
    # A deletion is final, but it may be blocked until a person intervenes.
    back = "" if is_gone else f"; until the end of the deletion, get it back: kplane kubeconfig {name} --merge"
    if removed:
        say(f"context {', '.join(removed)} is removed from your kubeconfig{back}")


async def _consequences(control_planes: ControlPlanes, control_plane: ControlPlane) -> str:
    from kplane.api import DeletionPolicy
    from kplane.api.names import management_namespace

    # The spec takes precedence, because the status may be older than the last edit of the spec.
    policy = control_plane.spec.deletion_policy or control_plane.status.deletion_policy or DeletionPolicy.RETAIN
    name, storage = control_plane.name, control_plane.status.storage
    if control_plane.spec.endpoint_ref is not None:
        return f"{name} is an API server that kplane does not run: it stays, and kplane's access to it ends."
    # The operator counts every ten minutes, and records only large changes.
    keys = storage.keys if storage is not None else 0
    size = f" ({keys} keys when last counted; more may have come)" if keys else ""
    if policy is DeletionPolicy.RETAIN:
        namespace = management_namespace(name)
        return f"The API of {name} ends. Its data{size} stay, and its keys in namespace {namespace}: policy Retain."
    snapshots = [
        snapshot.name for snapshot in await control_planes.snapshots(name) if snapshot.status.phase == "Completed"
    ]
    rest = f" Snapshots stay: {', '.join(snapshots)}." if snapshots else " There is no snapshot of it."
    return f"The API of {name} ends, and all its data{size} and keys are destroyed for good: policy Destroy.{rest}"


def _ask_for(name: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise Refused(f"there is no terminal to confirm the deletion of {name}; pass --yes")
    if typer.prompt(f"Type {name} to delete it", err=True, default="", show_default=False) != name:
        raise Refused("this is not the name; nothing was deleted")


@app.command("list", short_help="List all control planes.")
def list_all(*, output: OutputOption = Format.TABLE, context: ContextOption = None) -> None:
    """List all control planes."""

    async def work(control_planes: ControlPlanes) -> None:
        _show(await control_planes.list(), output=output)

    work_on(context, work)


@app.command(short_help="Show one control plane.")
def get(
    name: NameArgument,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print a line at each change, until Ctrl-C.")] = False,
    output: OutputOption = Format.TABLE,
    context: ContextOption = None,
) -> None:
    """Show one control plane; with --watch, each of its changes."""

    async def work(control_planes: ControlPlanes) -> None:
        control_plane = await control_planes.get(name)
        _show([control_plane], output=output, single=True)
        if not watch:
            return
        async for change in control_planes.watch(name):
            if change.object.metadata.resource_version != control_plane.metadata.resource_version:
                _show([change.object], output=output, single=True)

    work_on(context, work)


@app.command(short_help="Explain the state of one control plane.")
def describe(name: NameArgument, *, context: ContextOption = None) -> None:
    """Show what a control plane consists of, why it is not ready, and which command helps."""

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.description import describe_control_plane
        from kplane.cli.kubeconfigs import management

        head, *rest = await describe_control_plane(control_planes, name, cluster=management(context))
        print_text(head, highlighted=head.split()[1])
        print_text("\n".join(rest))

    work_on(context, work)


def _show(found: Sequence[ControlPlane], *, output: Format, single: bool = False) -> None:
    from kplane.api import READY, find_condition
    from kplane.cli.output import age, print_objects, print_table

    if output not in {Format.TABLE, Format.WIDE}:
        objects = [control_plane.model_dump(mode="json", by_alias=True, exclude_none=True) for control_plane in found]
        kind = {"apiVersion": found[0].resource.api_version, "kind": "ControlPlane"} if found else {}
        print_objects("controlplane", [kind | control_plane for control_plane in objects], form=output, single=single)
        return
    if not found:
        say("there is no control plane; create one: kplane create NAME")
        return
    heads = ["NAME", "MODE", "PHASE", "READY", "AGE"]
    wide = ["CLASS", "VERSION", "MIGRATION", "ENDPOINT"] if output is Format.WIDE else []
    rows = []
    for control_plane in found:
        status, condition = control_plane.status, find_condition(control_plane.status.conditions, READY)
        row: list[object] = [control_plane.name, control_plane.spec.mode, status.phase]
        row += [condition.status if condition is not None else None, age(control_plane.metadata.creation_timestamp)]
        if wide:
            moving = status.migration.step if status.migration is not None else None
            row += [
                control_plane.spec.class_ref.name if control_plane.spec.class_ref is not None else None,
                status.version,
            ]
            row += [moving, status.endpoint]
        rows.append(row)
    print_table(heads + wide, rows)
