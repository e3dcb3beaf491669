"""Allowlist of the series that mcm exposes for each instance, out of the thousands that an instance has.

The number of series of a cluster does not depend on its tenant: values are summed over queues, hosts and verbs. Names
and meanings are the programs' own. So `sum by (cluster)` gives the same result as over all series of an instance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

__all__ = ["SERIES", "Series", "Values", "allowed_values", "read_samples"]

Values = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by name and labels."""

_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\]|\\.)*+\",?)*+)\})?"
    r"[ \t]+(?P<value>[^ \t]+)"
)
_LABEL: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\"\\]|\\.)*+)\"")
_CODE: Final = re.compile(r"[1-5][0-9][0-9]")
_TOLD_APART: Final = frozenset({"401", "403", "429"})


class Sample(NamedTuple):
    """Sample of a metric in the text format; `labels` is the unparsed text."""

    name: str
    labels: str
    value: str

    def label(self, name: str) -> str | None:
        """Return the value of a label, without unescaping; None if the sample has no such label."""
        return next((match[2] for match in _LABEL.finditer(self.labels) if match[1] == name), None)


class Series(NamedTuple):
    """Metric of the allowlist."""

    type: str
    help: str
    labels: Callable[[Sample], Mapping[str, str]] = lambda _: {}
    merge: Callable[[float, float], float] = float.__add__


def _code_of(sample: Sample) -> Mapping[str, str]:
    code = sample.label("code") or ""
    if code in _TOLD_APART:
        return {"code": code}
    return {"code": f"{code[0]}xx" if _CODE.fullmatch(code) else "<error>"}


def _one_of(label: str, *values: str) -> Callable[[Sample], Mapping[str, str]]:
    def labels(sample: Sample) -> Mapping[str, str]:
        value = sample.label(label)
        return {label: value if value in values else "<other>"}

    return labels


_COMMON: Final[Mapping[str, Series]] = {
    "process_cpu_seconds_total": Series("counter", "Total user and system CPU time spent in seconds."),
    "process_resident_memory_bytes": Series("gauge", "Resident memory size in bytes."),
    "process_start_time_seconds": Series("gauge", "Start time of the process since unix epoch in seconds."),
    "process_open_fds": Series("gauge", "Number of open file descriptors."),
    "go_goroutines": Series("gauge", "Number of goroutines that currently exist."),
    "rest_client_requests_total": Series(
        "counter",
        "Requests to the cluster's API server, by the class of the status code; 401, 403 and 429 by themselves,"
        " <error> without an answer.",
        labels=_code_of,
    ),
    "workqueue_depth": Series("gauge", "Items that wait in all queues together."),
    "workqueue_adds_total": Series("counter", "Items added to all queues together."),
    "workqueue_retries_total": Series("counter", "Retries in all queues together."),
    "workqueue_longest_running_processor_seconds": Series(
        "gauge", "How long the longest running processor of all queues has been running.", merge=max
    ),
}
_SCHEDULER: Final[Mapping[str, Series]] = {
    "scheduler_pending_pods": Series(
        "gauge", "Pods that wait, by queue.", labels=_one_of("queue", "active", "backoff", "unschedulable", "gated")
    ),
    "scheduler_schedule_attempts_total": Series(
        "counter",
        "Attempts to schedule pods, by result.",
        labels=_one_of("result", "scheduled", "unschedulable", "error"),
    ),
}
SERIES: Final[Mapping[str, Series]] = {**_COMMON, **_SCHEDULER}
"""Allowlist by name. Only kube-scheduler has the series of the scheduler."""


def allowed_values(lines: Iterable[str]) -> Values:
    """Return the values of `SERIES` in the metrics text of an instance."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in read_samples(line for line in lines if line.startswith(_BEGINNINGS)):
        series = SERIES.get(sample.name)
        value = _number(sample.value)
        if series is None or value is None:
            continue
        key = sample.name, tuple(series.labels(sample).items())
        values[key] = series.merge(values[key], value) if key in values else value
    return values


def read_samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield the samples, and skip all other lines."""
    for line in lines:
        if not line.startswith("#") and (match := _SAMPLE.match(line)) is not None:
            yield Sample(match["name"], match["labels"] or "", match["value"])


_BEGINNINGS: Final = tuple(SERIES)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
