"""Names a program to API servers: its field manager and its User-Agent."""

from __future__ import annotations

import functools
import re
from typing import Final

from kplane.provider.errors import ProviderError

__all__ = ["require_name", "user_agent"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Pattern of names that are valid as field manager and as product of a User-Agent, at most 128 characters."""
_DISTRIBUTIONS: Final = ("kplane-provider", "kplane")
"""The distributions that ship this package."""


def require_name(name: str, *, version: str) -> None:
    """Raise ProviderError unless name and version are valid as field manager and User-Agent."""
    if not name:
        raise ProviderError(
            "failed to make a manager: it has no name; give one, such as Manager(config, provider, name='my-operator')."
            " API servers note it as the field manager of each write, and log it as the User-Agent"
        )
    for text, what in ((name, "name"), (version or "0", "version")):
        if _TOKEN.fullmatch(text) is None:
            raise ProviderError(
                f"failed to make a manager: its {what} is {text!r}; use at most 128 letters, digits, dots, dashes and"
                " underscores"
            )


def user_agent(name: str | None, *, version: str = "") -> str:
    """Return the User-Agent of a program, such as `my-operator/1.2 kplane-provider/0.1.0`.

    Without a field manager in the request, API servers use the text before the first slash.
    """
    library = f"kplane-provider/{_library_version()}"
    return f"{name}/{version or 'unknown'} {library}" if name else library


@functools.cache
def _library_version() -> str:
    # Imported on first use: importlib.metadata is slow, and a program without a client needs no version.
    from importlib.metadata import PackageNotFoundError, version

    for distribution in _DISTRIBUTIONS:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"
