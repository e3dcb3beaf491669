"""Conditions that report problems, grouped by their reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kplane.api import Condition
from kplane.cli.advice import advice_for, command_for, reason_of
from kplane.cli.doctor.finding import Finding, error, named, warning

__all__ = ["Told", "grouped"]

_PATIENCE: Final = timedelta(minutes=5)
"""Time before transient states, and states of normal work, become findings."""
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Told:
    """Condition of an object that reports a problem."""

    name: str
    """Name of the object."""
    condition: Condition


def grouped(
    kind: str,
    found: Iterable[Told],
    *,
    now: datetime,
    describe: str,
    passing: Collection[str] = (),
    harmless: bool = False,
    by_reason: bool = True,
) -> Sequence[Finding]:
    """Return a finding for each type and reason of these conditions.

    `describe` is the command that shows more of an object, with `{name}` in it. A transient reason is a finding only
    after some minutes: a reason that the operator declares as transient or expected, or a reason in `passing`. With
    `harmless`, the findings are warnings. With `by_reason`, a command for the reason replaces `describe`.
    """
    groups: dict[tuple[str, str], list[Told]] = {}
    for item in found:
        waits = item.condition.reason in passing or _passes(item.condition.reason)
        if not waits or now - item.condition.last_transition_time > _PATIENCE:
            groups.setdefault((item.condition.type, item.condition.reason), []).append(item)
    finding_of = warning if harmless else error
    return [
        finding_of(
            named(kind, (item.name for item in group)),
            _problem(group[0].condition),
            _command(group[0], describe, by_reason=by_reason),
        )
        for group in groups.values()
    ]


def _passes(word: str) -> bool:
    reason = reason_of(word)
    return reason is not None and (reason.transient or reason.expected)


def _problem(condition: Condition) -> str:
    message = " ".join(condition.message.split())
    shown = message if len(message) <= _SHOWN else f"{message[: _SHOWN - 1]}…"
    # Most messages contain their own remedy after a semicolon.
    advice = advice_for(condition.reason) if ";" not in message else ""
    return f"{condition.type} is {condition.status} ({condition.reason}): {shown}" + (f"; {advice}" if advice else "")


def _command(told: Told, describe: str, *, by_reason: bool) -> str:
    command = command_for(told.condition.reason, name=told.name) if by_reason else None
    return command or describe.format(name=told.name)
