"""Clusters and their instances as text, for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcm.fleet import ClusterSummary, State

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
_ERROR_LENGTH: Final = 120
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


class ClusterDetails(NamedTuple):
    """One cluster, its instance, and the memory of that."""

    summary: ClusterSummary
    pss_bytes: int | None
    """None where it has no process, or it could not be found out."""

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
            _one_line(summary.last_error) or "-",
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
        said = _one_line(found.message)
        lines.append(f"[{mark}]cluster/{found.name} {found.state}{f': {said}' if said else ''}")
    lines.append(f"readyz check {'failed' if any(checks.values()) else 'passed'}")
    return "".join(f"{line}\n" for line in lines)


def _one_line(text: str) -> str:
    """Take the first line, without what a terminal would act on: some of it comes from tenants."""
    first = " ".join(_UNPRINTABLE.sub(" ", text.strip().partition("\n")[0]).split())
    return first if len(first) <= _ERROR_LENGTH else f"{first[: _ERROR_LENGTH - 1]}…"
