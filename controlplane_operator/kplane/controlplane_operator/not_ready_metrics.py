"""Metrics of control planes that are not Ready: one series for each of them, up to a limit.

A fleet may have thousands of control planes, and an outage affects many of them. So the number of series is bounded,
and the remaining control planes are counted. Faults come before mistakes of users, so that mistakes cannot displace
faults.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from kplane.api import READY, ControlPlanePhase
from kplane.api.conditions import DELETING, PAUSED
from kplane.api.reasons import Cause, Reason
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.conditions import stored_condition

__all__ = ["not_ready_families"]

_MAX_SERIES: Final = 50
_REASONS: Final = {str(reason): reason for reason in Reason}
_UNKNOWN: Final = "Unknown"
"""Label value for a missing reason, and for a reason that this version does not know."""


@dataclass(frozen=True, slots=True)
class _NotReady:
    name: str
    reason: str
    cause: Cause
    since: float
    """Unix time in seconds."""


def not_ready_families(control_planes: Iterable[Object]) -> Iterator[Metric]:
    """Yield the metrics of control planes that are not Ready; those that are unready longest have a series."""
    listed = GaugeMetricFamily(
        "kplane_control_plane_not_ready_timestamp_seconds",
        f"Since when a control plane is not Ready, for at most {_MAX_SERIES}; cause User is a mistake in its objects",
        labels=["control_plane", "reason", "cause"],
    )
    unlisted = GaugeMetricFamily(
        "kplane_control_planes_not_ready_unlisted",
        "Control planes that are not Ready beyond those that have a series of their own",
        labels=["cause"],
    )
    unready = sorted(_all_not_ready(control_planes), key=lambda each: (each.cause is Cause.USER, each.since, each.name))
    for entry in unready[:_MAX_SERIES]:
        listed.add_metric([entry.name, entry.reason, entry.cause], entry.since)
    remaining = Tally(entry.cause for entry in unready[_MAX_SERIES:])
    for cause in Cause:
        unlisted.add_metric([cause], remaining[cause])
    yield from (listed, unlisted)


def _all_not_ready(control_planes: Iterable[Object]) -> Iterator[_NotReady]:
    for obj in control_planes:
        ready, metadata = stored_condition(obj, READY), obj["metadata"]
        paused = Reason.PAUSED_BY_ANNOTATION if stored_condition(obj, PAUSED).get("status") == "True" else None
        if "deletionTimestamp" in metadata:
            reason = paused or stored_condition(obj, DELETING).get("reason", Reason.DELETING)
            yield _not_ready(obj, reason=reason, since=metadata["deletionTimestamp"])
            continue
        # Migrations have a separate metric; see `metrics.py`.
        migrates = (obj.get("status") or {}).get("phase") == ControlPlanePhase.MIGRATING
        if ready.get("status") == "True" or migrates:
            continue
        reason = paused or ready.get("reason", _UNKNOWN)
        yield _not_ready(obj, reason=reason, since=ready.get("lastTransitionTime") or metadata["creationTimestamp"])


def _not_ready(obj: Object, *, reason: str, since: str) -> _NotReady:
    known_reason = _REASONS.get(reason)
    cause = known_reason.cause if known_reason is not None else Cause.SYSTEM
    return _NotReady(
        obj["metadata"]["name"], known_reason or _UNKNOWN, cause, datetime.fromisoformat(since).timestamp()
    )
