"""Usage reports: writes to the management cluster which control planes are in use, by Envoy's statistics."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

import aiohttp

from kplane.gateway.control_planes import last_use, may_sleep, report_use
from kplane.gateway.envoy.names import ANONYMOUS, AUTHORIZER, CONNECTIONS
from kplane.provider import Client, Informer, ProviderError

__all__ = ["Usage", "UsageReporter"]

logger = logging.getLogger(__name__)

_STAT: Final = re.compile(r"cluster\.([^./]+)(?:/([^.]+))?\.upstream_rq_(completed|401|active)")
_COUNTED: Final = {"completed": 1, "401": -1}
"""Weights of the statistics that show use. A response with 401 shows no use, since any client can cause it."""
_UNCOUNTED: Final = frozenset({ANONYMOUS, CONNECTIONS})
"""Parts of cluster names whose requests show no use, since their users are unknown."""
_LOOKS: Final = 6
"""Number of looks at the statistics in the interval between two reports of a control plane."""
_FEW: Final = 10
"""Maximum number of due reports that a look sends without spreading them over several looks."""
_AT_ONCE: Final = 4
_REPORT_SECONDS: Final = 10.0


class Usage:
    """Compares statistics of Envoy with the statistics of the last look."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}

    def look(self, numbers: Mapping[str, int]) -> set[str]:
        """Return the keys of control planes with open requests, or with responses to known users since the last look.

        Open requests, such as watches, belong to known users: an API server refuses other users at once (`bodies.py`).
        A connection to a host name shows no use, since any client can open it; the operator counts requests to host
        names. After a restart of Envoy or the controller, a control plane may count as used once too often.
        """
        answered: dict[str, int] = {}
        used = set()
        for name, value in numbers.items():
            match = _STAT.fullmatch(name)
            if match is None or match[1] == AUTHORIZER or match[2] in _UNCOUNTED:
                continue
            key, _, stat = match.groups()
            if stat == "active":
                used |= {key} if value else set()
            else:
                answered[key] = answered.get(key, 0) + _COUNTED[stat] * value
        used |= {key for key, count in answered.items() if count != self._answered.get(key, 0)}
        self._answered = answered
        return used


class UsageReporter:
    """Reports the last use of each control plane that may sleep, at most once in an interval.

    Several gateways may report the use of a control plane. After a report of another gateway, a gateway waits for the
    interval.
    """

    def __init__(
        self,
        client: Client,
        control_planes: Informer,
        *,
        numbers: Callable[[], Awaitable[Mapping[str, int]]],
        interval_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create a reporter.

        `numbers` returns Envoy's statistics. `interval_seconds` is the minimum time between two reports of a control
        plane.
        """
        self._client = client
        self._control_planes = control_planes
        self._numbers = numbers
        self._interval = timedelta(seconds=interval_seconds)
        self._clock = clock
        self._usage = Usage()
        self._unreported: dict[str, datetime] = {}
        """Last use without a report, by key of the control plane."""

    async def run(self) -> NoReturn:
        """Look at the statistics and send reports until cancelled. The next look repeats a failed report."""
        while True:
            await asyncio.sleep(self._interval.total_seconds() / _LOOKS)
            try:
                numbers = await self._numbers()
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                logger.debug("Envoy does not say what is in use: %s", error)
                continue
            await self.look(numbers)

    async def look(self, numbers: Mapping[str, int]) -> None:
        """Compare the statistics with the last look, and send reports that are due.

        Control planes with the oldest report come first. Reports are spread over the interval.
        """
        now = self._clock()
        self._unreported |= dict.fromkeys(self._usage.look(numbers), now)
        due = self._due(now)
        share = max(_FEW, math.ceil(len(self._unreported) / _LOOKS))
        slots = asyncio.Semaphore(_AT_ONCE)
        failures = await asyncio.gather(*(self._report(name, key, slots=slots) for _, name, key in sorted(due)[:share]))
        if failed := [reason for reason in failures if reason]:
            logger.warning("failed to report the use of %d control planes: %s; retrying", len(failed), failed[0])

    def _due(self, now: datetime) -> list[tuple[datetime, str, str]]:
        """Return last report, name and key of each control plane whose use is due for a report."""
        due, unreported = [], {}
        for entry in self._control_planes.entries():
            use = self._unreported.get(entry.uid)
            control_plane = self._control_planes.get(entry.name) if use is not None else None
            if use is None or control_plane is None or not may_sleep(control_plane):
                continue
            reported = last_use(control_plane, now=now)
            if reported is not None and reported >= use:
                continue
            # The operator ignores a use in the future. Such a time results from a clock that was ahead and has been set
            # back.
            use = unreported[entry.uid] = min(use, now)
            if reported is None or now - reported >= self._interval:
                due.append((reported or datetime.min.replace(tzinfo=UTC), entry.name, entry.uid))
        self._unreported = unreported
        return due

    async def _report(self, name: str, key: str, *, slots: asyncio.Semaphore) -> str:
        """Report the use of a control plane. Returns the reason of a failure; empty after a success."""
        async with slots:
            try:
                async with asyncio.timeout(_REPORT_SECONDS):
                    await report_use(self._client, name, uid=key, at=self._unreported[key])
            except (ProviderError, TimeoutError) as error:
                return f"{name}: {str(error) or 'no answer in time'}"
            return ""
