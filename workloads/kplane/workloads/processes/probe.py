"""Asking a component over HTTP whether it is ready."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp

from kplane.workloads.component import Component, Probe

__all__ = ["ReadinessProbe"]

_SHOWN_BYTES = 300


class ReadinessProbe:
    """One component's readiness probe."""

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
        self._timeout_seconds = probe.timeout_seconds

    async def check(self) -> str | None:
        """Ask once. Returns None where the component is ready, else a sentence that says why it is not."""
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._session.get(self._url, ssl=self._tls or True, allow_redirects=False) as response,
            ):
                if response.status == 200:
                    await response.read()  # so that the connection can be used again
                    return None
                shown = (await response.content.read(_SHOWN_BYTES)).decode(errors="replace").strip()
                return f"GET {self._url} answers {response.status}: {shown}"
        except TimeoutError:
            return f"GET {self._url} has no answer after {self._timeout_seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"GET {self._url} fails: {str(error) or type(error).__name__}"
