"""Text tables of clusters and their instances, for people."""

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
"""Length of each of the two lines that are shown of the last error."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


class ClusterDetails(NamedTuple):
    """Cluster, its instances, and the memory of their processes."""

    summary: ClusterSummary
    pss_bytes: int | None
    """None if no process runs, or its memory could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the name."""
        return {**self.summary.to_json(), "pssBytes": self.pss_bytes}


def render_table(clusters: Iterable[ClusterDetails]) -> str:
    """Return a table: a line with headings, and a line for each cluster."""
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
    """Return the checks in the format of Kubernetes' `/readyz?verbose`. `checks` has the error of each check, or "".

    Clusters are listed and do not affect the result.
    """
    lines = [f"[-]{name} failed: {wrong}" if wrong else f"[+]{name} ok" for name, wrong in checks.items()]
    for cluster in clusters:
        mark = "+" if cluster.state is State.READY else "-"
        digest = _digest(cluster.message)
        lines.append(f"[{mark}]cluster/{cluster.name} {cluster.state}{f': {digest}' if digest else ''}")
    lines.append(f"readyz check {'failed' if any(checks.values()) else 'passed'}")
    return "".join(f"{line}\n" for line in lines)


def _digest(text: str) -> str:
    """Return the first line and the last line, which is the last line of an ended program's log."""
    lines = text.strip().splitlines()
    return " ".join(_printable(line) for line in dict.fromkeys([*lines[:1], *lines[-1:]]))


def _printable(line: str) -> str:
    """Return the line without control characters, because tenants can cause some lines, and shortened if too long."""
    text = " ".join(_UNPRINTABLE.sub(" ", line).split())
    return text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 1]}…"
