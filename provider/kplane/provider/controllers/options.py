"""How a controller works."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kplane.provider.controllers.rate_limiter import Clustered, RateLimiter
from kplane.provider.controllers.sources import Engage
from kplane.provider.controllers.workers import Logger, Result
from kplane.provider.errors import ProviderError

__all__ = ["Options", "Reconcile"]

R = TypeVar("R", bound=Clustered)

Reconcile = Callable[[R], Awaitable[Result | None]]

_log: Final = logging.getLogger("provider.controller")


@dataclass(frozen=True, slots=True)
class Options(Generic[R]):
    """How a controller works.

    `max_concurrent` reconciles are at work at once. One that waits for a server which is slow to answer, or takes long,
    leaves its place to others; up to `waiting` may do so besides, with 0 none does. Of one cluster never more than
    `per_cluster` are under way, whether they wait or not (by default as many as `max_concurrent`). Each may take
    `timeout_seconds`; those of a cluster that goes have `grace_seconds` to end, or less if its coordinator cannot
    wait so long, and are cancelled then. `weights` gives clusters more or less of a share (see `FairQueue`),
    `rate_limiter` says when a failed request is retried (see `ItemBackoff`), and `logger` logs failures. `engage`
    is for all sources that do not say otherwise.

    A reconciler that raises ClusterNotFound has nothing left to do, and is not called again for the request;
    `retry_cluster_not_found` treats it as a failure like any other.
    """

    max_concurrent: int | None = None
    per_cluster: int | None = None
    waiting: int = 1000
    timeout_seconds: float = 60.0
    grace_seconds: float = 10.0
    weights: Callable[[str], float] | None = None
    rate_limiter: RateLimiter[R] | None = None
    logger: Logger = _log
    retry_cluster_not_found: bool = False
    engage: Engage = field(default_factory=Engage)

    def __post_init__(self) -> None:
        for name, least in (("max_concurrent", 1), ("per_cluster", 1), ("waiting", 0), ("grace_seconds", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ProviderError(f"{name} cannot be {value}: it is at least {least}")
        if self.timeout_seconds <= 0:
            raise ProviderError(f"a reconcile cannot be given {self.timeout_seconds:g} s: give it a time above 0")
