"""One thing that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Finding", "Severity", "error", "named", "warning"]

_NAMED: Final = 5


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Something does not work."""
    WARNING = "warning"
    """Something will not work, or could not be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with which object, and the command that mends it or shows more."""

    severity: Severity
    object: str
    problem: str
    command: str

    def to_json(self) -> dict[str, str]:
        """Return all of it."""
        return {name: str(value) for name, value in asdict(self).items()}


def error(subject: str, problem: str, command: str) -> Finding:
    """Return a finding of severity error."""
    return Finding(severity=Severity.ERROR, object=subject, problem=problem, command=command)


def warning(subject: str, problem: str, command: str) -> Finding:
    """Return a finding of severity warning."""
    return Finding(severity=Severity.WARNING, object=subject, problem=problem, command=command)


def named(kind: str, names: Iterable[str]) -> str:
    """Name objects of one kind: the first ones, and how many more."""
    found: Sequence[str] = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{kind} {', '.join(found[:_NAMED])}{more}"
