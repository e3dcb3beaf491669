"""Leads redirects of API servers back to the control plane: an API server does not know the prefix of its path.

kube-apiserver redirects by a path, for example `/openapi/v3` with an old hash, and `pods/x/proxy` without a slash at
its end.
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
"""Namespace of the dynamic metadata that the filter gives a request."""


def redirects() -> Message:
    """Return the filter. It works for all requests, after their route is chosen for good."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", default_source_code={"inline_string": _script()})}


@cache
def _script() -> str:
    given = f'local names = {{metadata = "{_METADATA}"}}'
    return f"{given}\n{files(__package__).joinpath('redirects.lua').read_text()}"
