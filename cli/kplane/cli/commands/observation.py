"""Commands that observe control planes: Events, logs and resource usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kplane.cli.choices import Order, Part
from kplane.cli.commands.options import ContextOption, NameArgument, OutputOption
from kplane.cli.output import Format, print_text
from kplane.cli.session import say, work_on

if TYPE_CHECKING:
    from kplane.cli.programs import Programs
    from kplane.client import ControlPlanes, KubernetesEvent

__all__ = ["app"]

app = typer.Typer()

_SILENCE_SECONDS = 8.0
_EVENT_HEADS = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
_EVENT_WIDTHS = (12, 7, 20, 36, 0)


@app.command(short_help="Print the Events of a control plane.")
def events(
    name: NameArgument,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print each new one too, until Ctrl-C.")] = False,
    output: OutputOption = Format.TABLE,
    context: ContextOption = None,
) -> None:
    """Print the Events of a control plane, of its registrations, endpoint and snapshots, and of its namespace."""

    async def work(control_planes: ControlPlanes) -> None:
        import contextlib

        from kplane.cli.output import print_row, print_table

        if watch:
            if output in {Format.TABLE, Format.WIDE}:
                print_row(_EVENT_HEADS, widths=_EVENT_WIDTHS)
            async with contextlib.aclosing(control_planes.follow_events(name)) as following:
                async for event in following:
                    _show_event(event, output=output)
            return
        entries = await control_planes.events(name)
        if output not in {Format.TABLE, Format.WIDE}:
            from kplane.cli.output import print_objects

            print_objects("event", [dict(event.raw) for event in entries], form=output)
        elif entries:
            print_table(_EVENT_HEADS, [_event_row(event) for event in entries])
        else:
            say(f"there are no Events of {name}; the API server keeps them for an hour")

    work_on(context, work)


def _show_event(event: KubernetesEvent, *, output: Format) -> None:
    from kplane.cli.output import print_objects, print_row

    if output in {Format.TABLE, Format.WIDE}:
        print_row(_event_row(event), widths=_EVENT_WIDTHS)
    else:
        print_objects("event", [dict(event.raw)], form=output, single=True)


def _event_row(event: KubernetesEvent) -> list[str]:
    from kplane.cli.output import age

    times = f" (x{event.count})" if event.count > 1 else ""
    return [f"{age(event.last)}{times}", event.type, event.reason, event.about, event.message]


@app.command(short_help="Print the logs of a control plane.")
def logs(
    name: NameArgument,
    *,
    of: Annotated[Part, typer.Option("--of", help="Whose logs.")] = Part.API_SERVER,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print each new line too, until Ctrl-C.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last lines.", show_default=False)
    ] = None,
    context: ContextOption = None,
) -> None:
    """Print the logs of the API server, the controllers, the scheduler or the etcd of a control plane.

    Reads the logs of pods through the management cluster, and the logs of processes from the files of this machine.
    """

    async def work(control_planes: ControlPlanes) -> None:
        import asyncio
        import contextlib

        from kplane.cli.logs import find_logs, merged
        from kplane.cli.programs import find_programs

        programs = await find_programs(control_planes.client)
        sources = await find_logs(control_planes, programs, name, of=of)
        for note in dict.fromkeys(source.note for source in sources if source.note):
            say(note)
        silence = next((source.silence for source in sources if source.silence), "")
        # A followed log has no end, so a timer reports that the log is empty.
        reminder = asyncio.get_running_loop().call_later(_SILENCE_SECONDS, say, silence) if silence and follow else None
        is_silent = True
        async with contextlib.aclosing(merged(sources, last=tail, follow=follow)) as lines:
            async for line in lines:
                is_silent = False
                if reminder is not None:
                    reminder.cancel()
                print_text(line)
        if silence and is_silent and not follow and tail != 0:
            say(silence)

    work_on(context, work)


@app.command(short_help="Show what each control plane takes.")
def top(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.5, help="Time between two looks.")
    ] = 2.0,
    sort: Annotated[Order, typer.Option("--sort", help="What comes first.")] = Order.NAME,
    context: ContextOption = None,
) -> None:
    """Show keys, bytes, memory and requests of all control planes, and which of them sleep.

    Memory and requests need the programs of kplane: pods that you may read, or processes of this machine.
    """

    async def work(control_planes: ControlPlanes) -> None:
        from kplane.cli.usage import UsageMeter
        from kplane.cli.usage_table import show_often, show_once

        meter = UsageMeter(control_planes, await _programs(control_planes))
        if watch:
            await show_often(meter, order=sort, interval_seconds=interval)
        else:
            await show_once(meter, order=sort)

    work_on(context, work)


async def _programs(control_planes: ControlPlanes) -> Programs | None:
    """Return the programs of kplane; None, with a warning, for a user who may not list them."""
    from kplane.cli.programs import find_programs
    from kplane.provider.errors import Forbidden

    try:
        return await find_programs(control_planes.client)
    except Forbidden as error:
        say(f"warning: {error}")
        return None
