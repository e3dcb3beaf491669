"""Filter that adds the path of the control plane to redirects of API servers, which do not know this prefix.

kube-apiserver redirects to a path, for example for `/openapi/v3` with an old hash, and for `pods/x/proxy` without a
slash at the end.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, Message, typed

__all__ = ["redirects"]

_LUA: Final = f"{FILTERS}.http.lua.v3"
_NAME: Final = "redirects"
_METADATA: Final = "kplane.redirects"
"""Namespace of the dynamic metadata that the filter sets for a request."""


def redirects() -> Message:
    """Return the filter. It works for all requests, after the final choice of their route."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", default_source_code={"inline_string": _script()})}


@cache
def _script() -> str:
    definitions = f'local names = {{metadata = "{_METADATA}"}}'
    return f"{definitions}\n{files('kplane.gateway.envoy').joinpath('redirects.lua').read_text()}"
