"""Conditions that say that something is wrong, grouped by their reason."""

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
"""So long what passes by itself, or is part of normal work, is no finding."""
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Told:
    """A condition of an object that is not as it should be."""

    name: str
    """Of the object."""
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

    `describe` is the command that shows more of an object, with `{name}` in it. A reason that passes by itself, as
    those of the operator that say so and those in `passing`, is a finding only after some minutes. What is `harmless`
    is a warning. With `by_reason`, a reason with a command of its own has that instead of `describe`.
    """
    groups: dict[tuple[str, str], list[Told]] = {}
    for each in found:
        waits = each.condition.reason in passing or _passes(each.condition.reason)
        if not waits or now - each.condition.last_transition_time > _PATIENCE:
            groups.setdefault((each.condition.type, each.condition.reason), []).append(each)
    told = warning if harmless else error
    return [
        told(
            named(kind, (each.name for each in group)),
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
    # Most messages say themselves what to do, after a semicolon.
    advice = advice_for(condition.reason) if ";" not in message else ""
    return f"{condition.type} is {condition.status} ({condition.reason}): {shown}" + (f"; {advice}" if advice else "")


def _command(told: Told, describe: str, *, by_reason: bool) -> str:
    known = command_for(told.condition.reason, name=told.name) if by_reason else None
    return known or describe.format(name=told.name)
