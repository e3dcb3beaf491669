"""Probes a component by HTTP: whether it is ready, and whether it hangs."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import aiohttp

from kplane.workloads.component import Component, Probe
from kplane.workloads.processes.proctable import uptime

__all__ = ["HttpProbe", "Liveness"]

_SHOWN_BYTES: Final = 1000
_LATE_SECONDS: Final = 1.0
"""Excess over the expected time of a probe, from which the probe shows a slow machine instead of a slow component."""


class HttpProbe:
    """A probe of a component."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        component: Component,
        probe: Probe,
        host: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        number = next(port.number for port in component.ports if port.name == probe.port)
        shown_host = f"[{host}]" if ":" in host else host
        self._url = f"{'https' if probe.ca else 'http'}://{shown_host}:{number}/{probe.path.removeprefix('/')}"
        self._session = session
        self._tls = tls
        self.timeout_seconds: Final = probe.timeout_seconds

    async def check(self) -> str | None:
        """Send a single probe. Returns None if the answer is 200, else a sentence with the answer or the error."""
        try:
            async with (
                asyncio.timeout(self.timeout_seconds),
                self._session.get(self._url, ssl=self._tls or True, allow_redirects=False) as response,
            ):
                if response.status == 200:
                    await response.read()  # so that the connection can be used again
                    return None
                shown = (await response.content.read(_SHOWN_BYTES)).decode(errors="replace").strip()
                return f"GET {self._url} answers {response.status}: {shown}"
        except TimeoutError:
            return f"GET {self._url} has no answer after {self.timeout_seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"GET {self._url} fails: {str(error) or type(error).__name__}"


class Liveness:
    """Judges a process as kubelet does by startupProbe and livenessProbe: it hangs after `failures` in a row.

    Until its first good answer, a process has `start_seconds` instead. A failure counts only if the supervisor itself
    was on time. Otherwise the machine was suspended or is overloaded, which restarts would make worse. The failures so
    far are then forgotten.
    """

    def __init__(self, *, failures: int, start_seconds: float) -> None:
        self._limit = failures
        self._start_seconds = start_seconds
        self._failures = 0
        self._failing_seconds = 0.0
        self.started = False
        """Whether the process has given a good answer to any probe."""

    async def watch(self, probe: HttpProbe, *, interval_seconds: float) -> str | None:
        """Wait for the interval, and probe once. Returns the problem if the process hangs, else None."""
        began = uptime()
        await asyncio.sleep(interval_seconds)
        problem = await probe.check()
        seconds = uptime() - began
        return self.judge(
            problem, seconds=seconds, late=seconds > interval_seconds + probe.timeout_seconds + _LATE_SECONDS
        )

    def judge(self, problem: str | None, *, seconds: float, late: bool) -> str | None:
        """Record an answer, and the seconds since the previous answer. Returns the problem if the process hangs."""
        if problem is None or late:
            self._failures, self._failing_seconds = 0, 0.0
            self.started = self.started or problem is None
            return None
        self._failures += 1
        self._failing_seconds += seconds
        hangs = self._failures >= self._limit if self.started else self._failing_seconds >= self._start_seconds
        return f"{problem}, {self._failures} times in a row" if hangs else None
