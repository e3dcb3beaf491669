"""Options of a controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kplane.provider.controllers.rate_limiter import Clustered, RateLimiter
from kplane.provider.controllers.sources import Engage
from kplane.provider.controllers.workers import Logger
from kplane.provider.errors import ProviderError

__all__ = ["Options", "require_time"]

R = TypeVar("R", bound=Clustered)

_log: Final = logging.getLogger("kplane.provider.controllers")


@dataclass(frozen=True, slots=True)
class Options(Generic[R]):
    """Says how a controller works.

    `workers` reconciles work at once. One that waits for a slow server, or takes long, leaves its worker to others, so
    that no cluster blocks another; up to `waiting` may do so. With 0 no more than `workers` run at all, which is what
    upstream's MaxConcurrentReconciles says. At most `per_cluster` reconciles of one cluster run at once, waiting or not
    (default: `workers`). A reconcile may take `timeout_seconds` (default: that of the manager). When a cluster goes,
    its reconciles have `grace_seconds`, or less if the coordinator cannot wait so long, and are cancelled then.

    `weights` gives clusters a larger or smaller share (see `FairQueue`), `rate_limiter` delays retries (see
    `ItemBackoff`), and `logger` logs failures. `engage` is the default for all sources.

    A reconciler that raises ClusterNotFound is not called again for the request if the cluster of the request is gone.
    If the error names another cluster, the request waits until that cluster joins, and is tried again after some
    minutes in any case. With `retry_cluster_not_found` ClusterNotFound is retried like any failure.

    While the API server of a cluster cannot be reached, its requests wait. With `while_unreachable` they are reconciled
    also then, for example by a controller that reports such clusters.
    """

    workers: int | None = None
    per_cluster: int | None = None
    waiting: int = 1000
    timeout_seconds: float | None = None
    grace_seconds: float = 10.0
    weights: Callable[[str], float] | None = None
    rate_limiter: RateLimiter[R] | None = None
    logger: Logger = _log
    retry_cluster_not_found: bool = False
    while_unreachable: bool = False
    engage: Engage = field(default_factory=Engage)

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("per_cluster", 1), ("waiting", 0), ("grace_seconds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ProviderError(f"{name} cannot be {value}: it is at least {least}")
        if self.timeout_seconds is not None:
            require_time(self.timeout_seconds)


def require_time(seconds: float) -> None:
    """Raise ProviderError for a time-out that no reconcile can keep."""
    if seconds <= 0:
        raise ProviderError(f"a reconcile cannot be given {seconds:g} s: give it a time above 0")
