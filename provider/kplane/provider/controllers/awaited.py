"""Requests that wait for clusters which the fleet does not have yet."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

from kplane.provider.aio.backoff import delay_after
from kplane.provider.controllers.rate_limiter import Clustered

__all__ = ["AwaitedClusters"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R", bound=Clustered)

_INITIAL_SECONDS: Final = 60.0
_MAXIMUM_SECONDS: Final = 600.0


class AwaitedClusters(Generic[R]):
    """Holds requests that wait for a missing cluster, such as a member that is discovered after its hub.

    The queue keeps each request with a long delay, so no request depends on this record. When a cluster joins, the
    delays of its waiting requests end. The record holds `limit` requests; further requests wait for the end of their
    delay. Tests replace `uniform`.
    """

    def __init__(
        self, name: str, *, limit: int = 10_000, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._name = name
        self._limit = limit
        self._uniform = uniform
        self._awaited: dict[R, str] = {}
        """The missing cluster of each request."""
        self._requests: dict[str, dict[R, int]] = {}
        """The requests of each missing cluster, with their number of tries."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._awaited)

    @property
    def clusters(self) -> Collection[str]:
        """Names of the missing clusters."""
        return tuple(self._requests)

    def wait(self, request: R, missing: str) -> float:
        """Record that a request waits for a missing cluster.

        Returns the seconds until the next try of the request. The delay grows with each try, up to ten minutes.
        """
        same = self._awaited.get(request) == missing
        tries = self._forget(request) if request in self._awaited else 0
        tries = tries if same else 0
        if missing not in self._requests:
            log.info("%s: %s waits for cluster %s, which is not known yet", self._name, request, missing)
        if len(self._awaited) < self._limit:
            self._awaited[request] = missing
            self._requests.setdefault(missing, {})[request] = tries + 1
        delay = delay_after(tries, initial_seconds=_INITIAL_SECONDS, maximum_seconds=_MAXIMUM_SECONDS)
        return delay * self._uniform(0.5, 1.0)

    def join(self, cluster: str) -> Iterable[R]:
        """Return the requests that waited for a cluster, and forget them."""
        requests = self._requests.pop(cluster, {})
        for request in requests:
            del self._awaited[request]
        return requests

    def forget(self, request: R) -> None:
        """Forget a request: it was reconciled without the missing cluster."""
        if request in self._awaited:
            self._forget(request)

    def drop(self, cluster: str) -> None:
        """Forget the requests of a cluster that has left."""
        for request in [request for request in self._awaited if request.cluster == cluster]:
            self._forget(request)

    def _forget(self, request: R) -> int:
        missing = self._awaited.pop(request)
        requests = self._requests[missing]
        tries = requests.pop(request)
        if not requests:
            del self._requests[missing]
        return tries
