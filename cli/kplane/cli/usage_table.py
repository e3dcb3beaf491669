"""Tables of the usage of control planes: once, or live on a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kplane.cli.choices import Order
from kplane.cli.output import print_table, print_text
from kplane.cli.printable import printable
from kplane.cli.session import say
from kplane.cli.usage import HEADS, Usage, UsageMeter, cells, in_order

__all__ = ["render", "show_often", "show_once"]

_STYLES = {"awake": "green", "asleep": "blue", "Failed": "red", "Unavailable": "red"}


async def show_once(meter: UsageMeter, *, order: Order) -> None:
    """Print the present usage of all control planes."""
    usages = in_order(await meter.look(), order)
    if usages:
        # The rate needs two measurements, so the last column is left out.
        print_table(HEADS[:-1], [cells(usage)[:-1] for usage in usages])
    else:
        say("there is no control plane; create one: kplane create NAME")
    for problem in meter.problems:
        say(f"warning: {problem}")


async def show_often(meter: UsageMeter, *, order: Order, interval_seconds: float) -> None:
    """Measure until cancelled: in place on a terminal, otherwise with a table after each measurement."""
    if not sys.stdout.isatty():
        while True:
            print_table(HEADS, [cells(usage) for usage in in_order(await meter.look(), order)])
            print_text("")
            await asyncio.sleep(interval_seconds)
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(render(in_order(await meter.look(), order), problems=meter.problems), refresh=True)
            await asyncio.sleep(interval_seconds)


def render(usages: Sequence[Usage], *, problems: Sequence[str]) -> Group:
    """Return the table for a terminal, with totals and the values that could not be measured."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number < 2 else "right", no_wrap=True)
    for usage in usages:
        name, state, *rest = map(printable, cells(usage))
        table.add_row(Text(name), Text(state, style=_STYLES.get(state, "")), *map(Text, rest))
    awake = sum(usage.state == "awake" for usage in usages)
    summary = f"{len(usages)} control planes, {awake} awake; Ctrl-C ends this"
    return Group(
        table,
        Text(summary, style="dim"),
        *(Text(printable(f"warning: {problem}"), style="yellow") for problem in problems),
    )
