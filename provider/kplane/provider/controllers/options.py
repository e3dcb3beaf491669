"""Options of a controller."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
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
    """Limits, timeouts and policies of a controller.

    `workers` reconciles run at once. A reconcile that waits for a slow server, or takes long, frees its worker, so
    no cluster blocks another; up to `waiting` reconciles may do so. With `waiting=0` at most `workers`
    reconciles run, as with upstream's MaxConcurrentReconciles. At most `per_cluster` reconciles of a cluster run at
    once, waiting or not (default: `workers`). The timeout of a reconcile is `timeout_seconds` (default: the timeout of
    the manager). When a cluster leaves, its reconciles have `grace_seconds`, or less if the coordinator cannot wait
    that long, before they are cancelled.

    `weights` gives clusters a larger or smaller share (see `FairQueue`), `rate_limiter` delays retries (see
    `ItemBackoff`), and `logger` logs failures. `engage` is the default for all sources.

    If a reconcile raises ClusterNotFound and the cluster of the request is gone, the request is dropped. If the error
    names another cluster, the request waits until that cluster joins, and is retried after some minutes in any case.
    With `retry_cluster_not_found` ClusterNotFound is retried like any failure.

    While the API server of a cluster cannot be reached, requests of the cluster wait. With `while_unreachable` the
    requests are reconciled, for example by a controller that reports such clusters.

    `on_failure` is called with the request and the error of each failed reconcile, before the retry, for example to
    report the error in the status of the object. The error is a TimeoutError after the timeout, which `on_failure` has
    too. Errors of `on_failure` are logged.
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
    on_failure: Callable[[R, BaseException], Awaitable[None]] | None = None
    engage: Engage = field(default_factory=Engage)

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("per_cluster", 1), ("waiting", 0), ("grace_seconds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ProviderError(f"{name} cannot be {value}: it is at least {least}")
        if self.timeout_seconds is not None:
            require_time(self.timeout_seconds)


def require_time(seconds: float) -> None:
    """Raise ProviderError for a reconcile timeout that is not positive."""
    if seconds <= 0:
        raise ProviderError(f"a reconcile cannot be given {seconds:g} s: give it a time above 0")
