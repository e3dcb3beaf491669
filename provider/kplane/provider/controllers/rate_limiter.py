"""Delays of retries, which grow with each failure of a request until a success."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Hashable
from typing import Final, Protocol, TypeVar

from typing_extensions import override

from kplane.provider.aio.backoff import delay_after

__all__ = ["Clustered", "Guarded", "ItemBackoff", "RateLimiter"]

log: Final = logging.getLogger(__name__)


class Clustered(Hashable, Protocol):
    """A request that belongs to a cluster: `Request`, or a custom type. The queue merges equal requests."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...


R = TypeVar("R", bound=Hashable)
R_contra = TypeVar("R_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[R_contra]):
    """Decides when a failed request is retried."""

    def next_delay(self, request: R_contra) -> float:
        """Count a failure, and return the seconds until the next try."""
        ...

    def failures(self, request: R_contra) -> int:
        """Return the number of failures since `forget`."""
        ...

    def forget(self, request: R_contra) -> None:
        """Reset the failures of a request that succeeded."""

    def drop(self, cluster: str) -> None:
        """Forget all requests of a cluster."""


class ItemBackoff(RateLimiter[R]):
    """Doubles the delay of each request from `initial_seconds` to `maximum_seconds`, with jitter.

    A random part of up to half is subtracted, so that requests that failed together do not retry together. The defaults
    match client-go's ItemExponentialFailureRateLimiter. Tests replace `uniform`.
    """

    def __init__(
        self,
        *,
        initial_seconds: float = 0.005,
        maximum_seconds: float = 1000.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial = initial_seconds
        self._maximum = maximum_seconds
        self._uniform = uniform
        self._failures: dict[str, dict[R, int]] = {}

    @override
    def next_delay(self, request: R) -> float:
        of_cluster = self._failures.setdefault(getattr(request, "cluster", ""), {})
        failures = of_cluster.get(request, 0)
        of_cluster[request] = failures + 1
        delay = delay_after(failures, initial_seconds=self._initial, maximum_seconds=self._maximum)
        return delay * self._uniform(0.5, 1.0)

    @override
    def failures(self, request: R) -> int:
        return self._failures.get(getattr(request, "cluster", ""), {}).get(request, 0)

    @override
    def forget(self, request: R) -> None:
        cluster = getattr(request, "cluster", "")
        of_cluster = self._failures.get(cluster)
        if of_cluster is not None and of_cluster.pop(request, 0) and not of_cluster:
            del self._failures[cluster]

    @override
    def drop(self, cluster: str) -> None:
        self._failures.pop(cluster, None)


class Guarded(RateLimiter[R]):
    """Wraps a custom rate limiter; falls back to an `ItemBackoff` on an error or an invalid delay."""

    def __init__(self, limiter: RateLimiter[R]) -> None:
        self._limiter = limiter
        self._spare: ItemBackoff[R] = ItemBackoff()
        self._warned = False

    @override
    def next_delay(self, request: R) -> float:
        spare = self._spare.next_delay(request)
        try:
            delay = float(self._limiter.next_delay(request))
            if not (math.isfinite(delay) and delay >= 0):
                raise ValueError(f"{delay} is no delay in seconds")  # noqa: TRY301 - handled as an error of the limiter
        except Exception as error:  # noqa: BLE001 - logged by `_warn`
            self._warn(error)
            return spare
        return delay

    @override
    def failures(self, request: R) -> int:
        return self._spare.failures(request)

    @override
    def forget(self, request: R) -> None:
        self._spare.forget(request)
        try:
            self._limiter.forget(request)
        except Exception as error:  # noqa: BLE001 - logged by `_warn`
            self._warn(error)

    @override
    def drop(self, cluster: str) -> None:
        self._spare.drop(cluster)
        try:
            self._limiter.drop(cluster)
        except Exception as error:  # noqa: BLE001 - logged by `_warn`
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        # Log once: each failure asks the limiter.
        if not self._warned:
            self._warned = True
            log.warning("failed to ask the rate limiter %r; using the default delays", self._limiter, exc_info=error)
