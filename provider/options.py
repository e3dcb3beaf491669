"""How a controller works."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from provider.controller import Logger, Result
from provider.errors import ProviderError
from provider.rate_limiter import Clustered, RateLimiter
from provider.sources import Engage

__all__ = ["Options", "Reconcile"]

R = TypeVar("R", bound=Clustered)

Reconcile = Callable[[R], Awaitable[Result | None]]

_log: Final = logging.getLogger("provider.controller")


@dataclass(frozen=True, slots=True)
class Options(Generic[R]):
    """How a controller works.

    `max_concurrent` reconciles are under way at once, of those `per_cluster` of one cluster (by default as many).
    Besides, `waiting` may wait for servers that are slow to answer. Each may take `timeout_seconds`; those of a cluster
    that goes have `grace_seconds` to end, and are cancelled then. `weights` gives clusters more or less of a share,
    `rate_limiter` says when a failed request is tried again, and `logger` logs failures.

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
