"""Tells requests whose token is good from requests whose token may be made up. The latter have limits of their own.

The authorizer verifies tokens that kplane or an OIDC issuer signed. All other tokens only the API server knows. Its
answer to the first request decides how later requests with this token count.
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
"""Namespace of the dynamic metadata that the filter gives a request."""
UNKNOWN: Final = "unknown"
"""True in these metadata if the token of a request may be made up."""

_LUA: Final = f"{FILTERS}.http.lua.v3"
_NAME: Final = "credentials"
_LIMITS: Final = {
    # A token is forgotten after one to two of these without an answer.
    "generation_seconds": 60,
    # Bytes of names of tokens of one control plane in a generation: about 3,000 tokens of ServiceAccounts.
    "tenant_bytes": 256 << 10,
    # The same of all control planes, in each worker of Envoy.
    "all_bytes": 16 << 20,
    # A token whose name is longer is not remembered.
    "name_bytes": 4 << 10,
    # Tokens a second about which each worker asks the authorizer, which has other work. Tenants share them evenly.
    "questions": 400,
    # Groups of 16 bits of an IPv6 address that name the network of a client.
    "network_groups": IPV6_NETWORK // 16,
    # Without an answer of the authorizer in this time, a token counts as unknown.
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
    """Return the filter. It works for those requests whose route says so."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", source_codes={_NAME: {"inline_string": _script()}})}


def with_credentials(key: str) -> Message:
    """Return the part of a route that has the filter work. `key` names the control plane."""
    return {_NAME: typed(f"{_LUA}.LuaPerRoute", name=_NAME, filter_context={"tenant": key})}


def of_unknown() -> Message:
    """Match the gateway's own answers to requests whose token may be made up."""
    matcher = {"filter": METADATA, "path": [{"key": UNKNOWN}], "value": {"bool_match": True}}
    return {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}


@cache
def _script() -> str:
    """Return `credentials.lua`, with its names and limits before it."""
    tables: dict[str, Mapping[str, object]] = {
        "names": {name: f'"{value}"' for name, value in _NAMES.items()},
        "limits": _LIMITS,
    }
    given = [
        f"local {table} = {{{', '.join(f'{name} = {value}' for name, value in values.items())}}}"
        for table, values in tables.items()
    ]
    return "\n".join([*given, files(__package__).joinpath("credentials.lua").read_text()])
