"""Which cluster the work under way is about."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Final, TypeVar

from kplane.provider.controllers.request import ObjectKey, Request

__all__ = ["cluster_context", "current_cluster", "single_cluster"]

T = TypeVar("T")

_current: Final[ContextVar[str | None]] = ContextVar("cluster of the reconcile under way", default=None)


def current_cluster() -> str | None:
    """Return the name of the cluster that is worked on; None outside of a reconcile. Tasks inherit it."""
    return _current.get()


@contextlib.contextmanager
def cluster_context(name: str) -> Iterator[None]:
    """Say that what is done within is about this cluster; controllers do so around each reconcile."""
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def single_cluster(reconcile: Callable[[ObjectKey], Awaitable[T]]) -> Callable[[Request], Awaitable[T]]:
    """Let a reconciler that knows of one cluster only work on a fleet.

    It is called with namespace and name; the cluster is `Manager.cluster_from_context()`. Upstream's
    ReconcilerWithClusterInContext.
    """

    async def within(request: Request) -> T:
        with cluster_context(request.cluster):
            return await reconcile(request.key)

    return within
