"""How many requests a second each control plane may have: one bucket of tokens for each, whatever routes they take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kplane.gateway.clients import IPV6_NETWORK
from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.metadata import TENANT, UNKNOWN_TO, path_to
from kplane.gateway.envoy.names import RATE_LIMIT, TENANT_HEADER, UNKNOWN_HEADER
from kplane.gateway.routes import Route

__all__ = ["rate_by_address", "rate_limit", "rates"]

_FILTER: Final = f"{FILTERS}.http.local_ratelimit.v3.LocalRateLimit"
_BY_ROUTE: Final[Message] = {"descriptor_key": TENANT, "metadata_key": path_to(TENANT), "source": "ROUTE_ENTRY"}
_BY_AUTHORIZER: Final[Message] = {"descriptor_key": TENANT, "header_name": TENANT_HEADER}
"""Whom a request counts for: the route knows it, or the authorizer said so."""
_UNKNOWN_BY_ROUTE: Final[Message] = {
    "descriptor_key": UNKNOWN_TO,
    "metadata_key": path_to(UNKNOWN_TO),
    "source": "ROUTE_ENTRY",
}
_UNKNOWN_BY_AUTHORIZER: Final[Message] = {"descriptor_key": UNKNOWN_TO, "header_name": UNKNOWN_HEADER}
_ADDRESS: Final = "masked_remote_address"
_BY_ADDRESS: Final[Message] = {_ADDRESS: {"v4_prefix_mask_len": 32, "v6_prefix_mask_len": IPV6_NETWORK}}
_ALWAYS: Final = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
_UNBOUNDED: Final = {"max_tokens": (1 << 32) - 1, "tokens_per_fill": (1 << 32) - 1, "fill_interval": "1s"}
"""Of all requests together: Envoy demands a bucket for those that have none."""
_EACH_ADDRESS: Final = 10
"""Requests a second without a credential, of one client address: nodes behind one address join at once."""
_ADDRESSES: Final = 1024
"""Buckets of addresses of one control plane. The one that was used longest ago goes first."""
_EACH_UNKNOWN: Final = 50
"""Requests a second with tokens that may be made up, of one client address to one control plane."""
_UNKNOWN_ADDRESSES: Final = 10_000
"""Buckets of such addresses, of all control planes."""
_BURST: Final = 2
"""After a pause, so many seconds' requests may come at once."""


def rate_limit() -> Message:
    """Return the filter. The table of routes has its limits."""
    return {"name": RATE_LIMIT, "typed_config": typed(_FILTER, stat_prefix=RATE_LIMIT)}


def rates(routes: Iterable[Route]) -> Message:
    """Return what the table of routes says to the filter: the limits of all control planes that have one.

    Requests whose token may be made up have a bucket for each client address and control plane.
    """
    limited = [_bucket(route, each) for route in routes if (each := route.limits.requests_per_second) is not None]
    unknown = {"entries": [{"key": UNKNOWN_TO}, {"key": _ADDRESS}], "token_bucket": _filled(_EACH_UNKNOWN)}
    actions: list[list[Message]] = [
        [{"metadata": _BY_ROUTE}],
        [{"request_headers": _BY_AUTHORIZER}],
        [{"metadata": _UNKNOWN_BY_ROUTE}, _BY_ADDRESS],
        [{"request_headers": _UNKNOWN_BY_AUTHORIZER}, _BY_ADDRESS],
    ]
    return _buckets([*limited, unknown], actions=actions, max_dynamic_descriptors=_UNKNOWN_ADDRESSES)


def rate_by_address() -> Message:
    """Return the part of a route that gives each client address a bucket of its own, and takes none of a tenant's."""
    # A descriptor without a value stands for each value.
    each = {"entries": [{"key": _ADDRESS}], "token_bucket": _filled(_EACH_ADDRESS)}
    return _buckets([each], actions=[[_BY_ADDRESS]], max_dynamic_descriptors=_ADDRESSES)


def _buckets(descriptors: list[Message], *, actions: list[list[Message]], **more: int) -> Message:
    """Return what a table or a route says to the filter. Each list of actions finds the bucket of a request."""
    config = typed(
        _FILTER,
        stat_prefix=RATE_LIMIT,
        filter_enabled=_ALWAYS,
        filter_enforced=_ALWAYS,
        token_bucket=_UNBOUNDED,
        always_consume_default_token_bucket=False,
        descriptors=descriptors,
        rate_limits=[{"actions": each} for each in actions],
        **more,
    )
    return {RATE_LIMIT: config}


def _bucket(route: Route, each_second: int) -> Message:
    return {"entries": [{"key": TENANT, "value": route.key}], "token_bucket": _filled(each_second)}


def _filled(each_second: int) -> Message:
    return {"max_tokens": _BURST * each_second, "tokens_per_fill": each_second, "fill_interval": "1s"}
