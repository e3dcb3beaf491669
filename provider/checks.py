"""Whether a process is well: named questions with short answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from provider.errors import ProviderError

__all__ = ["Check", "Checks"]

Check = Callable[[], Awaitable[None]]
"""Returns where all is well, and raises what says what is not."""

_SECONDS: Final = 2.0


class Checks:
    """The checks of one kind, health or readiness, under their names."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Add a check; raises ProviderError where the name is taken."""
        if name in self._checks:
            raise ProviderError(f"there is a check {name!r} already; give this one another name")
        self._checks[name] = check

    async def run(self) -> Mapping[str, str | None]:
        """Ask all at once; what is wrong by name, None where nothing is. One that takes longer than 2 s is not well."""
        return dict(zip(self._checks, await asyncio.gather(*map(_ask, self._checks.values())), strict=True))


async def _ask(check: Check) -> str | None:
    try:
        async with asyncio.timeout(_SECONDS):
            await check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return str(error) or type(error).__name__
    return None
