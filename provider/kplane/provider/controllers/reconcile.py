"""Reconcile functions, and the adapter by which a controller calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.controllers.rate_limiter import Clustered
from kplane.provider.controllers.workers import Result
from kplane.provider.errors import ClusterNotReady, ProviderError, ServerError, Unreachable

__all__ = ["AnyReconcile", "Reconcile", "is_unreached", "require_result", "with_cluster"]

R = TypeVar("R", bound=Clustered)

_GATEWAY_ERRORS: Final = frozenset({502, 503, 504})
"""Status codes from a proxy or load balancer in front of an API server that is down."""

Reconcile = Callable[[R], Awaitable[Result | None]]
AnyReconcile = Reconcile[R] | Callable[[R, Cluster], Awaitable[Result | None]]
"""A reconcile function that takes a request, or a request and its cluster."""


def with_cluster(reconcile: AnyReconcile[R], *, get_cluster: Callable[[str], Cluster]) -> Reconcile[R]:
    """Return a function of a request that calls `reconcile`, with the cluster if `reconcile` takes a second argument.

    Raises ProviderError if `reconcile` is no coroutine function, or takes other arguments.
    """
    name = _name(reconcile)
    if not callable(reconcile):
        raise ProviderError(f"{name} cannot be called: give build() a coroutine function, `async def`")
    if not _is_coroutine_function(reconcile):
        raise ProviderError(f"{name} is no coroutine function: define it by `async def`, and await what it calls")
    if _takes(reconcile, 1):
        return cast("Reconcile[R]", reconcile)
    if not _takes(reconcile, 2):
        raise ProviderError(f"{name} cannot be called with a request, nor with a request and its cluster")
    both = cast("Callable[[R, Cluster], Awaitable[Result | None]]", reconcile)

    async def within(request: R) -> Result | None:
        return await both(request, get_cluster(request.cluster))

    return within


def require_result(returned: object) -> Result | None:
    """Return what a reconcile function returned. Raises ProviderError if that is no Result and not None."""
    if returned is None or isinstance(returned, Result):
        return returned
    raise ProviderError(f"the reconcile function returned {type(returned).__name__}: let it return None or a Result")


def is_unreached(error: BaseException) -> bool:
    """Tell whether a reconcile failed because an API server is unreachable, even if another error wraps the cause."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        cause = errors.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, (Unreachable, ClusterNotReady)):
            return True
        if isinstance(cause, ServerError) and cause.status in _GATEWAY_ERRORS:
            return True
        errors += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            errors += cause.exceptions
    return False


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    if isinstance(function, functools.partial):
        return _is_coroutine_function(function.func)
    # A decorated function may be a plain one that returns the coroutine of the original.
    candidates = (function, inspect.unwrap(function), getattr(function, "__call__", None))  # noqa: B004 - of its class
    return any(inspect.iscoroutinefunction(candidate) for candidate in candidates)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
