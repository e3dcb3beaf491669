"""Says in the management cluster which control planes are in use, by what Envoy counts."""

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
"""Counters of answers that show use. An answer 401 shows none: anybody gets it."""
_UNCOUNTED: Final = frozenset({ANONYMOUS, CONNECTIONS})
"""Parts of a control plane's upstream where users are not known."""
_LOOKS: Final = 6
"""In the time between two reports of one control plane."""
_FEW: Final = 10
"""So many reports a look are not spread over several."""
_AT_ONCE: Final = 4
_REPORT_SECONDS: Final = 10.0


class Usage:
    """Compares what Envoy counted with what it had counted at the last look."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}

    def look(self, numbers: Mapping[str, int]) -> set[str]:
        """Return the keys of control planes that answered a known user since the last look, or have open requests.

        Open requests, such as watches, are of known users: an API server refuses others at once (`bodies.py`). A
        connection to a host name shows no use: anybody can make one. The operator counts the requests there. After a
        start of Envoy or of the controller, a control plane counts as used once more than it was.
        """
        answered: dict[str, int] = {}
        used = set()
        for name, value in numbers.items():
            found = _STAT.fullmatch(name)
            if found is None or found[1] == AUTHORIZER or found[2] in _UNCOUNTED:
                continue
            key, _, stat = found.groups()
            if stat == "active":
                used |= {key} if value else set()
            else:
                answered[key] = answered.get(key, 0) + _COUNTED[stat] * value
        used |= {key for key, count in answered.items() if count != self._answered.get(key, 0)}
        self._answered = answered
        return used


class UsageReporter:
    """Reports the last use of control planes that may sleep, of each once in an interval at most.

    Several gateways may report of one control plane: each leaves it alone for the interval after a report of another.
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
        """`numbers` returns what Envoy counts."""
        self._client = client
        self._control_planes = control_planes
        self._numbers = numbers
        self._interval = timedelta(seconds=interval_seconds)
        self._clock = clock
        self._usage = Usage()
        self._unreported: dict[str, datetime] = {}
        """By key, the last use that no report has said."""

    async def run(self) -> NoReturn:
        """Look and report until cancelled. A report that fails is repeated after the next look."""
        while True:
            await asyncio.sleep(self._interval.total_seconds() / _LOOKS)
            try:
                numbers = await self._numbers()
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                logger.debug("Envoy does not say what is in use: %s", error)
                continue
            await self.look(numbers)

    async def look(self, numbers: Mapping[str, int]) -> None:
        """Take up what Envoy counts now, and report what is due: the stalest first, spread over the interval."""
        now = self._clock()
        self._unreported |= dict.fromkeys(self._usage.look(numbers), now)
        due = self._due(now)
        share = max(_FEW, math.ceil(len(self._unreported) / _LOOKS))
        slots = asyncio.Semaphore(_AT_ONCE)
        failures = await asyncio.gather(*(self._report(name, key, slots=slots) for _, name, key in sorted(due)[:share]))
        if failed := [why for why in failures if why]:
            logger.warning("failed to report the use of %d control planes: %s; retrying", len(failed), failed[0])

    def _due(self, now: datetime) -> list[tuple[datetime, str, str]]:
        """Return the last report, name and key of each control plane whose use is to be said now."""
        due, present = [], {}
        for entry in self._control_planes.entries():
            used = self._unreported.get(entry.uid)
            control_plane = self._control_planes.get(entry.name) if used is not None else None
            if used is None or control_plane is None or not may_sleep(control_plane):
                continue
            reported = last_use(control_plane, now=now)
            if reported is not None and reported >= used:
                continue
            # The operator ignores a report of a use in the future: a clock that was ahead was set back.
            used = present[entry.uid] = min(used, now)
            if reported is None or now - reported >= self._interval:
                due.append((reported or datetime.min.replace(tzinfo=UTC), entry.name, entry.uid))
        self._unreported = present
        return due

    async def _report(self, name: str, key: str, *, slots: asyncio.Semaphore) -> str:
        """Report one use; returns why that failed, or nothing."""
        async with slots:
            try:
                async with asyncio.timeout(_REPORT_SECONDS):
                    await report_use(self._client, name, uid=key, at=self._unreported[key])
            except (ProviderError, TimeoutError) as error:
                return f"{name}: {str(error) or 'no answer in time'}"
            return ""
