"""Rate limits of control planes: a token bucket for each control plane, shared by all its routes."""

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
"""Descriptors with the control plane for which a request counts, from its route or from the authorizer."""
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
"""Bucket that Envoy requires for requests without another bucket, with the maximum rate."""
_EACH_ADDRESS: Final = 10
"""Maximum requests per second without a credential of a client address. Several nodes behind an address may join at
once.
"""
_ADDRESSES: Final = 1024
"""Maximum number of address buckets of a control plane. Envoy evicts the least recently used bucket."""
_EACH_UNKNOWN: Final = 50
"""Maximum requests per second with unverified tokens of a client address to a control plane."""
_UNKNOWN_ADDRESSES: Final = 10_000
"""Maximum number of address buckets for unverified tokens, of all control planes together."""
_BURST: Final = 2
"""Size of a bucket in seconds: the requests of this time may arrive at once after a pause."""


def rate_limit() -> Message:
    """Return the filter. Its limits are part of the route configuration."""
    return {"name": RATE_LIMIT, "typed_config": typed(_FILTER, stat_prefix=RATE_LIMIT)}


def rates(routes: Iterable[Route]) -> Message:
    """Return the configuration of the filter for all routes, with the rate limits of the control planes.

    Requests with an unverified token have a bucket for each client address and control plane.
    """
    limited = [_bucket(route, rate) for route in routes if (rate := route.limits.requests_per_second) is not None]
    unknown = {"entries": [{"key": UNKNOWN_TO}, {"key": _ADDRESS}], "token_bucket": _filled(_EACH_UNKNOWN)}
    actions: list[list[Message]] = [
        [{"metadata": _BY_ROUTE}],
        [{"request_headers": _BY_AUTHORIZER}],
        [{"metadata": _UNKNOWN_BY_ROUTE}, _BY_ADDRESS],
        [{"request_headers": _UNKNOWN_BY_AUTHORIZER}, _BY_ADDRESS],
    ]
    return _buckets([*limited, unknown], actions=actions, max_dynamic_descriptors=_UNKNOWN_ADDRESSES)


def rate_by_address() -> Message:
    """Return the part of a route with a bucket for each client address, in place of the control plane's bucket."""
    # A descriptor without a value creates a bucket for each value.
    descriptor = {"entries": [{"key": _ADDRESS}], "token_bucket": _filled(_EACH_ADDRESS)}
    return _buckets([descriptor], actions=[[_BY_ADDRESS]], max_dynamic_descriptors=_ADDRESSES)


def _buckets(descriptors: list[Message], *, actions: list[list[Message]], **more: int) -> Message:
    """Return a configuration of the filter. Each list of actions finds the bucket of a request."""
    config = typed(
        _FILTER,
        stat_prefix=RATE_LIMIT,
        filter_enabled=_ALWAYS,
        filter_enforced=_ALWAYS,
        token_bucket=_UNBOUNDED,
        always_consume_default_token_bucket=False,
        descriptors=descriptors,
        rate_limits=[{"actions": action_list} for action_list in actions],
        **more,
    )
    return {RATE_LIMIT: config}


def _bucket(route: Route, each_second: int) -> Message:
    return {"entries": [{"key": TENANT, "value": route.key}], "token_bucket": _filled(each_second)}


def _filled(each_second: int) -> Message:
    return {"max_tokens": _BURST * each_second, "tokens_per_fill": each_second, "fill_interval": "1s"}
