"""Commands that save and restore single control planes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import ContextOption, NameArgument, TimeoutOption, WaitOption
from kplane.cli.output import print_text
from kplane.cli.session import continuing, say, work_on

if TYPE_CHECKING:
    from kplane.client import ControlPlanes

__all__ = ["app"]

app = typer.Typer(name="backup", help="Save and restore single control planes.", no_args_is_help=True)


@app.command(short_help="Save a control plane.")
def create(
    name: NameArgument,
    *,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="NAME", help="Name of the snapshot.  [default: NAME and the time]"),
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = 600.0,
    context: ContextOption = None,
) -> None:
    """Save the data and keys of a control plane at one revision, encrypted."""

    async def work(control_planes: ControlPlanes) -> None:
        from datetime import UTC, datetime

        snapshot_name = snapshot or f"{name}-{datetime.now(UTC):%Y%m%d%H%M%S}"
        with continuing(
            f"if snapshot {snapshot_name} was created, it is still being made; see: kplane backup list {name}"
        ):
            saved = await control_planes.snapshot(snapshot_name, of=name, wait=wait, timeout_seconds=timeout)
        size = f": {saved.status.keys} keys, {(saved.status.bytes or 0) >> 10} KiB" if wait else ""
        print_text(f"controlplanesnapshot/{snapshot_name} {'completed' if wait else 'created'}{size}")

    work_on(context, work)


@app.command("list", short_help="List snapshots.")
def list_all(
    name: Annotated[str | None, typer.Argument(help="Control plane, else all.", show_default=False)] = None,
    *,
    context: ContextOption = None,
) -> None:
    """List the snapshots of a control plane, or all."""

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.output import age, print_table

        snapshots = await control_planes.snapshots(name)
        if not snapshots:
            say("there is no snapshot; make one: kplane backup create NAME")
            return
        print_table(
            ["NAME", "CONTROL PLANE", "PHASE", "KEYS", "SIZE", "VERSION", "AGE"],
            [
                [
                    snapshot.name,
                    snapshot.spec.control_plane_ref.name,
                    snapshot.status.phase,
                    snapshot.status.keys,
                    snapshot.status.bytes,
                    snapshot.status.kubernetes_version,
                    age(snapshot.metadata.creation_timestamp),
                ]
                for snapshot in snapshots
            ],
        )

    work_on(context, work)


@app.command(short_help="Delete a snapshot with its file.")
def delete(
    snapshot: Annotated[str, typer.Argument(help="Name of the snapshot.", show_default=False)],
    *,
    context: ContextOption = None,
) -> None:
    """Delete a snapshot. The operator deletes its file first."""

    async def work(control_planes: ControlPlanes) -> None:
        await control_planes.delete_snapshot(snapshot)
        print_text(f"controlplanesnapshot/{snapshot} is being deleted")

    work_on(context, work)


@app.command(short_help="Create a control plane from a snapshot.")
def restore(
    snapshot: Annotated[str, typer.Argument(help="Snapshot to begin with.", show_default=False)],
    name: NameArgument,
    *,
    identity_secret: Annotated[
        str,
        typer.Option(
            "--identity-secret",
            metavar="SECRET",
            help="Secret in the operator's namespace with the private key, in its key `identity`.",
            show_default=False,
        ),
    ],
    clone: Annotated[bool, typer.Option("--clone", help="Give it fresh uids and keys of its own.")] = False,
    class_name: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="Its ControlPlaneClass.", show_default=False)
    ] = None,
    timeout: TimeoutOption = 600.0,
    context: ContextOption = None,
) -> None:
    """Create a control plane from a snapshot: the former one again, or a clone."""

    async def work(control_planes: ControlPlanes) -> None:
        await control_planes.restore(
            snapshot, name, identity_secret=identity_secret, clone=clone, class_name=class_name
        )
        with continuing(f"{name} is still being created; follow it: kplane get {name} --watch"):
            control_plane = await control_planes.wait(name, timeout_seconds=timeout)
        print_text(f"controlplane/{name} is {control_plane.status.phase}")
        say(f"delete the private key: kubectl delete secret {identity_secret} -n kplane-system")

    work_on(context, work)
