"""Clusters and their instances as text, for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kplane.mcm.serving.overview import ClusterSummary, State

__all__ = ["ClusterDetails", "render_checks", "render_table"]

_HEADINGS: Final = (
    "CLUSTER",
    "STATE",
    "VERSION",
    "PROFILE",
    "GENERATION",
    "CONFIGURATION",
    "PID",
    "PSS",
    "RESTARTS",
    "SERVER",
    "LAST ERROR",
)
_LINE_LENGTH: Final = 160
"""Each of the two lines that are shown of what was said last."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


class ClusterDetails(NamedTuple):
    """One cluster, its instance, and the memory of that."""

    summary: ClusterSummary
    pss_bytes: int | None
    """None if it has no process, or it could not be found out."""

    def to_json(self) -> dict[str, Any]:
        """All of it but the name."""
        return {**self.summary.to_json(), "pssBytes": self.pss_bytes}


def render_table(clusters: Iterable[ClusterDetails]) -> str:
    """Return one line for each cluster, below a line with headings."""
    rows: list[Sequence[str]] = [_HEADINGS]
    rows += [
        (
            summary.name,
            summary.state,
            summary.version or "-",
            summary.profile,
            str(summary.generation or "-"),
            summary.configuration or "-",
            str(summary.pid or "-"),
            f"{pss / (1 << 20):.0f}Mi" if pss is not None else "-",
            str(summary.restarts),
            summary.server,
            _digest(summary.last_error) or "-",
        )
        for summary, pss in clusters
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def render_checks(checks: Mapping[str, str], *, clusters: Iterable[ClusterSummary]) -> str:
    """Return what Kubernetes' `/readyz?verbose` looks like. `checks` has what is wrong by name; empty: nothing is.

    Clusters are shown and do not count.
    """
    lines = [f"[-]{name} failed: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in checks.items()]
    for found in clusters:
        mark = "+" if found.state is State.READY else "-"
        said = _digest(found.message)
        lines.append(f"[{mark}]cluster/{found.name} {found.state}{f': {said}' if said else ''}")
    lines.append(f"readyz check {'failed' if any(checks.values()) else 'passed'}")
    return "".join(f"{line}\n" for line in lines)


def _digest(text: str) -> str:
    """Take the first line, and the last one, which is the last word of a program that ended."""
    lines = text.strip().splitlines()
    return " ".join(_printable(line) for line in dict.fromkeys([*lines[:1], *lines[-1:]]))


def _printable(line: str) -> str:
    """Take out what a terminal would act on, since some of it comes from tenants, and what is too long."""
    found = " ".join(_UNPRINTABLE.sub(" ", line).split())
    return found if len(found) <= _LINE_LENGTH else f"{found[: _LINE_LENGTH - 1]}…"
