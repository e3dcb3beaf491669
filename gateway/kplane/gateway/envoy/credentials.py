"""Filter that separates requests with a verified token from requests with an unverified token, for separate limits.

The authorizer verifies tokens that kplane or an OIDC issuer has signed. Only the API server can verify other tokens.
Its response to the first request with a token decides how later requests with the token count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from kplane.gateway.clients import IPV6_NETWORK
from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.names import AUTHORIZER, CLIENT_HEADER, KNOWN_HEADER, PROTOCOL_HEADER, VERIFY_HEADER

__all__ = ["METADATA", "UNKNOWN", "credentials", "of_unknown", "with_credentials"]

METADATA: Final = "kplane.credentials"
"""Namespace of the dynamic metadata that the filter sets for a request."""
UNKNOWN: Final = "unknown"
"""Key in these metadata; true if the token of a request is unverified."""

_LUA: Final = f"{FILTERS}.http.lua.v3"
_NAME: Final = "credentials"
_LIMITS: Final = {
    # Seconds of a generation. The filter forgets a token after one or two generations without a response.
    "generation_seconds": 60,
    # Maximum bytes of token names of a control plane in a generation: about 3,000 tokens of ServiceAccounts.
    "tenant_bytes": 256 << 10,
    # Maximum bytes of token names of all control planes, in each worker of Envoy.
    "all_bytes": 16 << 20,
    # Maximum bytes of a token name. The filter does not remember longer names.
    "name_bytes": 4 << 10,
    # Tokens per second about which each worker asks the authorizer, which has other work too. Control planes have equal
    # shares.
    "questions": 400,
    # Number of 16-bit groups of an IPv6 address that identify the network of a client.
    "network_groups": IPV6_NETWORK // 16,
    # Milliseconds without a response of the authorizer after which a token counts as unverified.
    "answer_milliseconds": 2000,
}
_NAMES: Final = {
    "authorizer": AUTHORIZER,
    "client": CLIENT_HEADER,
    "known": KNOWN_HEADER,
    "metadata": METADATA,
    "protocol": PROTOCOL_HEADER,
    "unknown": UNKNOWN,
    "verify": VERIFY_HEADER,
}


def credentials() -> Message:
    """Return the filter. It works only for requests whose route enables it."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", source_codes={_NAME: {"inline_string": _script()}})}


def with_credentials(key: str) -> Message:
    """Return the part of a route that enables the filter. `key` is the key of the control plane."""
    return {_NAME: typed(f"{_LUA}.LuaPerRoute", name=_NAME, filter_context={"tenant": key})}


def of_unknown() -> Message:
    """Return a filter that matches the gateway's own responses to requests with an unverified token."""
    matcher = {"filter": METADATA, "path": [{"key": UNKNOWN}], "value": {"bool_match": True}}
    return {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}


@cache
def _script() -> str:
    """Return `credentials.lua` after definitions of its names and limits."""
    tables: dict[str, Mapping[str, object]] = {
        "names": {name: f'"{value}"' for name, value in _NAMES.items()},
        "limits": _LIMITS,
    }
    definitions = [
        f"local {table} = {{{', '.join(f'{name} = {value}' for name, value in values.items())}}}"
        for table, values in tables.items()
    ]
    return "\n".join([*definitions, files("kplane.gateway.envoy").joinpath("credentials.lua").read_text()])
