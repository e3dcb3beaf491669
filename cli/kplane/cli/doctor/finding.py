"""Problem of an object, with a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Finding", "Severity", "error", "named", "warning"]

_NAMED: Final = 5


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """A function of kplane does not work."""
    WARNING = "warning"
    """A function of kplane will stop working, or could not be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Problem of an object, and the command that solves it or shows more."""

    severity: Severity
    object: str
    problem: str
    command: str

    def to_json(self) -> dict[str, str]:
        """Return all fields."""
        return {name: str(value) for name, value in asdict(self).items()}


def error(subject: str, problem: str, command: str) -> Finding:
    """Return a finding of severity error."""
    return Finding(severity=Severity.ERROR, object=subject, problem=problem, command=command)


def warning(subject: str, problem: str, command: str) -> Finding:
    """Return a finding of severity warning."""
    return Finding(severity=Severity.WARNING, object=subject, problem=problem, command=command)


def named(kind: str, names: Iterable[str]) -> str:
    """Return the names of objects of a kind: the first names, and the number of further names."""
    ordered: Sequence[str] = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"{kind} {', '.join(ordered[:_NAMED])}{more}"
