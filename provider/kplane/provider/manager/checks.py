"""Health checks by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from kplane.provider.errors import ProviderError

__all__ = ["Check", "CheckResult", "Checks"]

Check = Callable[[], Awaitable[str | None]]
"""Health check. It returns on success, and raises an error with the cause on failure.

A returned text, such as the role of the process, is shown by `?verbose`.
"""


class CheckResult(NamedTuple):
    """Result of a check."""

    failure: str | None = None
    """Cause of the failure; None if the check passed."""
    note: str | None = None
    """Text that the check returned."""


class Checks:
    """Runs the health or readiness checks of a process, with `timeout_seconds` for each check."""

    def __init__(self, *, timeout_seconds: float = 2.0) -> None:
        self._timeout_seconds = timeout_seconds
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Add a check. Raises ProviderError if the name is taken."""
        if name in self._checks:
            raise ProviderError(f"there is a check {name!r} already; give this one another name")
        self._checks[name] = check

    async def run(self, *, only: str | None = None) -> Mapping[str, str | None]:
        """Run all checks, or the check `only`, concurrently. Returns failures by name; None for a check that passed."""
        return {name: result.failure for name, result in (await self.results(only=only)).items()}

    async def results(self, *, only: str | None = None) -> Mapping[str, CheckResult]:
        """Run all checks, or the check `only`, concurrently. Returns the results by name."""
        selected = {name: check for name, check in self._checks.items() if only in {None, name}}
        return dict(zip(selected, await asyncio.gather(*map(self._run_check, selected.values())), strict=True))

    async def _run_check(self, check: Check) -> CheckResult:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return CheckResult(note=await check())
        except TimeoutError:
            return CheckResult(f"no answer within {self._timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - any error is the result of the check
            return CheckResult(str(error) or type(error).__name__)
