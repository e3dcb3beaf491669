"""Commands that change control planes: move, sleep, wake, pause, rotate, register."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.commands.options import ContextOption, Mode, NameArgument, TimeoutOption, WaitOption
from kplane.cli.errors import Refused
from kplane.cli.output import print_text
from kplane.cli.printable import printable
from kplane.cli.session import continuing, say, work_on

if TYPE_CHECKING:
    from kplane.api import ControlPlane, MigrationPlan
    from kplane.client import ControlPlanes, Settled

__all__ = ["app"]

app = typer.Typer()

_HOLD_SECONDS = 10.0


@app.command(short_help="Move a control plane with its data.")
def move(
    name: NameArgument,
    *,
    to: Annotated[
        Mode | None, typer.Option("--to", help="Virtual: shared etcd. Dedicated: own etcd.", show_default=False)
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what it would take.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Stay in the present home, and give up a move.")] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Move back to the former home; before the cut, abort.")
    ] = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = 900.0,
    context: ContextOption = None,
) -> None:
    """Move a control plane to another etcd while it is in use. Its address and credentials stay valid.

    The settings of the other mode are kept for the way back. No write is lost, also by --abort and --rollback.
    """
    if [to is not None, abort, rollback].count(True) != 1:
        raise typer.BadParameter("give one of --to, --abort and --rollback")
    if plan and to is None:
        raise typer.BadParameter("--plan is for --to")

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.api import ControlPlaneMode
        from kplane.client import arrived, moved
        from kplane.client.moves import former_home

        control_plane = await control_planes.get(name)
        if to is not None:
            mode = ControlPlaneMode(to)
            if control_plane.home.mode == mode and control_plane.spec.mode == mode:
                say(f"{name} is {mode} already")
                return
            await control_planes.move(name, mode=mode, plan=plan)
            settled = moved(mode)
        else:
            updated = await (control_planes.abort_move(name) if abort else control_planes.roll_back(name))
            settled = arrived(updated.home if abort else former_home(updated))
        if plan:
            planned = await control_planes.wait(name, _is_planned, timeout_seconds=min(timeout, 120.0))
            _print_lease_guards(planned)
            _print_plan(_plan_of(planned))
            return
        if not wait:
            print_text(f"controlplane/{name} begins to move" if not abort else f"controlplane/{name} is to stay")
            return
        with continuing(f"the move of {name} continues; see how far it is: kplane describe {name}"):
            result = await _wait_for_move(control_planes, name, settled, timeout_seconds=timeout)
        migration = result.status.migration
        hold = migration.hold_milliseconds if migration is not None and not abort else None
        waited = f"; writes waited for {hold} ms" if hold is not None else ""
        print_text(f"controlplane/{name} is {result.home.mode}{waited}")

    work_on(context, work)


async def _wait_for_move(
    control_planes: ControlPlanes, name: str, settled: Settled, *, timeout_seconds: float
) -> ControlPlane:
    """Wait until a move has settled, and print its progress. Raises Refused if the operator reports blockers."""
    import contextlib

    from kplane.client import NotSettled

    step = ""

    def is_there(each: ControlPlane) -> bool:
        nonlocal step
        if settled(each):
            return True
        migration, progress = each.status.migration, _progress(each)
        if progress and progress != step:
            step = progress
            say(f"{name}: {progress}")
        plan = _plan_of(each) if _is_planned(each) and (migration is None or migration.step is None) else None
        if plan is not None and plan.blockers:
            why = "; ".join(f"{blocker.message} ({blocker.reason})" for blocker in plan.blockers)
            raise Refused(f"{name} does not move yet: {why}; give it up by `kplane move {name} --abort`")
        return False

    control_plane = await control_planes.wait(name, is_there, timeout_seconds=timeout_seconds)
    # The operator reports how long writes waited, a moment after the change of the address.
    with contextlib.suppress(NotSettled):
        control_plane = await control_planes.wait(name, _is_told, timeout_seconds=_HOLD_SECONDS)
    return control_plane


def _progress(control_plane: ControlPlane) -> str:
    """Return the step of a migration; after the cut, the operator's message about the next step."""
    migration = control_plane.status.migration
    if migration is None or migration.step is None:
        return ""
    if migration.step.is_cut:
        return migration.message or ""
    return f"{migration.step} {migration.percent} %"


def _is_planned(control_plane: ControlPlane) -> bool:
    """Whether the operator has planned the migration of the present generation of the spec."""
    status = control_plane.status
    return _plan_of(control_plane) is not None and status.observed_generation == control_plane.metadata.generation


def _plan_of(control_plane: ControlPlane) -> MigrationPlan | None:
    migration = control_plane.status.migration
    return migration.plan if migration is not None else None


def _is_told(control_plane: ControlPlane) -> bool:
    """Whether the status has the time that writes waited, or never will, because an aborted move has no cut."""
    migration = control_plane.status.migration
    is_cut = migration is not None and migration.step is not None and migration.step.is_cut
    return migration is None or not is_cut or migration.hold_milliseconds is not None


def _print_lease_guards(control_plane: ControlPlane) -> None:
    """Warn about webhooks that apply to the Leases of controllers, because a move ends and starts the controllers."""
    from kplane.api import find_condition
    from kplane.api.conditions import LEASES_UNGUARDED

    guarded = find_condition(control_plane.status.conditions, LEASES_UNGUARDED)
    if guarded is not None and guarded.status == "False":
        print_text(printable(f"warning: {guarded.message} ({guarded.reason})"))


def _print_plan(plan: MigrationPlan | None) -> None:
    if plan is None:
        return
    hold = f", writes wait about {plan.hold_milliseconds} ms" if plan.hold_milliseconds is not None else ""
    print_text(f"{plan.keys} keys, {plan.bytes >> 10} KiB, about {plan.seconds} s{hold}")
    for blocker in plan.blockers:
        print_text(printable(f"blocked: {blocker.message} ({blocker.reason})"))
    if plan.blockers:
        raise typer.Exit(1)


@app.command(short_help="Let a control plane sleep.")
def sleep(
    name: NameArgument, *, wait: WaitOption = True, timeout: TimeoutOption = 300.0, context: ContextOption = None
) -> None:
    """End the API server of a control plane that starts on demand, until a client needs it."""
    _turn(context, name, to_sleep=True, timeout=timeout if wait else None)


@app.command(short_help="Wake a control plane.")
def wake(
    name: NameArgument, *, wait: WaitOption = True, timeout: TimeoutOption = 300.0, context: ContextOption = None
) -> None:
    """Start the API server of a control plane that sleeps."""
    _turn(context, name, to_sleep=False, timeout=timeout if wait else None)


def _turn(context: str | None, name: str, *, to_sleep: bool, timeout: float | None) -> None:
    """Request that a control plane sleeps or wakes, and wait until it does; without `timeout`, do not wait."""

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.api import ControlPlaneMode
        from kplane.client import awake

        if to_sleep and (await control_planes.get(name)).home.mode is ControlPlaneMode.DEDICATED:
            raise Refused(
                f"{name} has an etcd of its own, and never sleeps; move it first: kplane move {name} --to Virtual"
            )
        asked_for = "to sleep" if to_sleep else "to wake"
        with continuing(f"if {name} was asked {asked_for}, that stays; see how far it is: kplane describe {name}"):
            if to_sleep:
                await control_planes.sleep(name, wait=timeout is not None, timeout_seconds=timeout or 0.0)
            else:
                await control_planes.wake(name)
                if timeout is not None:
                    await control_planes.wait(name, awake, timeout_seconds=timeout)
        result, request = ("sleeps", "is to sleep") if to_sleep else ("is awake", "is to wake")
        print_text(f"controlplane/{name} {result if timeout is not None else request}")

    work_on(context, work)


@app.command(short_help="Have the operator leave a control plane as it is.")
def pause(name: NameArgument, *, context: ContextOption = None) -> None:
    """Have the operator leave a control plane as it is, its deletion included, until `kplane resume`."""
    _ask(context, lambda control_planes: control_planes.pause(name), f"controlplane/{name} paused")


@app.command(short_help="End a pause.")
def resume(name: NameArgument, *, context: ContextOption = None) -> None:
    """End a pause."""
    _ask(context, lambda control_planes: control_planes.resume(name), f"controlplane/{name} resumed")


@app.command(short_help="Exchange the keys of a control plane.")
def rotate(name: NameArgument, *, context: ContextOption = None) -> None:
    """Have CAs and ServiceAccount key exchanged, step by step, while clients continue to work."""
    _ask(context, lambda control_planes: control_planes.rotate(name), f"controlplane/{name} exchanges its keys")


@app.command(short_help="Run controllers for a control plane.")
def register(
    name: NameArgument,
    *,
    service: Annotated[
        list[str] | None, typer.Option("--service", help="controllers or scheduler.  [default: controllers]")
    ] = None,
    context: ContextOption = None,
) -> None:
    """Run kube-controller-manager, or kube-scheduler, for a control plane."""
    services = tuple(service or ["controllers"])
    done = f"controlplaneregistration/{name} applied"
    _ask(context, lambda control_planes: control_planes.register(name, services=services), done)


@app.command(short_help="End the controllers of a control plane.")
def unregister(name: NameArgument, *, context: ContextOption = None) -> None:
    """End what runs by the registration of this name."""
    done = f"controlplaneregistration/{name} deleted"
    _ask(context, lambda control_planes: control_planes.unregister(name), done)


def _ask(context: str | None, what: Callable[[ControlPlanes], Awaitable[object]], done: str) -> None:
    async def work(control_planes: ControlPlanes) -> None:
        await what(control_planes)
        print_text(done)

    work_on(context, work)
