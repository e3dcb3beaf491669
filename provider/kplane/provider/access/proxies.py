"""Proxies of the environment, which kplane does not use: a kubeconfig names the proxy of its cluster."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["ignored_proxy"]

_VARIABLES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def ignored_proxy() -> str | None:
    """Return a sentence about the variable of a proxy that has no effect; None if no such variable is set.

    The sentence does not contain the value, which may have a password.
    """
    name = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if name is None:
        return None
    return f"{name} is set and has no effect; name a proxy by proxy-url in the kubeconfig that needs it"
