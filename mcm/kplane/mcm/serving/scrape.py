"""Scraper: reads the metrics of instances over TLS, with a client certificate that only mcm has."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import aiohttp

from kplane.mcm.describe.certificate import ReaderCertificate
from kplane.mcm.errors import McmError
from kplane.mcm.instance.lifecycle import Origin, Target
from kplane.provider import ClusterConfig
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.tls import ssl_context
from kplane.provider.errors import KubeconfigError

__all__ = ["ScrapeLimits", "Scraper"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class ScrapeLimits(NamedTuple):
    """Limits of a scrape of all instances."""

    deadline_seconds: float = 5.0
    """Deadline for all instances together. Prometheus waits for 10 s by default."""
    timeout_seconds: float = 2.0
    """Deadline for each instance."""
    at_once: int = 8
    bytes_each: int = 4 << 20
    """Largest metrics text of an instance; 0.4 MB are usual."""


class Scraper:
    """Reads the metrics of several instances concurrently; an async context manager.

    An instance is left out if it does not answer within the limits or its text is too large. Instances that failed in
    the last scrape are read last, so that they do not delay the others.
    """

    def __init__(self, reader: ReaderCertificate, *, limits: ScrapeLimits | None = None) -> None:
        self._reader = reader
        self._limits = limits or ScrapeLimits()
        self._failing: frozenset[Origin] = frozenset()
        self._contexts: dict[bytes, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Connections are not kept, because each idle connection would cost memory in its instance.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def scrape(self, targets: Iterable[Target], *, take: Callable[[Target, str], _T]) -> dict[Origin, _T]:
        """Return the result of `take` for the text of each instance, by the origin of the metrics.

        Instances that failed are left out, and so are instances for which `take` raises McmError.
        """
        ordered = sorted(targets, key=lambda target: target.origin in self._failing)
        authorities = {target.authority for target in ordered}
        self._contexts = {
            authority: context for authority, context in self._contexts.items() if authority in authorities
        }
        results: dict[Origin, _T] = {}
        slots = asyncio.Semaphore(self._limits.at_once)
        tasks = [
            asyncio.create_task(
                self._ask(target, slots=slots, take=take, found=results), name=f"scrape {target.origin.cluster}"
            )
            for target in ordered
        ]
        if tasks:
            try:
                await asyncio.wait(tasks, timeout=self._limits.deadline_seconds)
            finally:
                await end_tasks(tasks)
        self._failing = frozenset(target.origin for target in ordered if target.origin not in results)
        return results

    async def _ask(
        self,
        target: Target,
        *,
        slots: asyncio.Semaphore,
        take: Callable[[Target, str], _T],
        found: dict[Origin, _T],
    ) -> None:
        async with slots:
            try:
                async with asyncio.timeout(self._limits.timeout_seconds):
                    text = await self._read(target)
                found[target.origin] = take(target, text.decode(errors="replace"))
            except (aiohttp.ClientError, OSError, ValueError, McmError, KubeconfigError) as error:
                reason = str(error) or type(error).__name__
                level = logging.DEBUG if target.origin in self._failing else logging.INFO
                logger.log(level, "failed to read the metrics of %s of %s: %s", *reversed(target.origin), reason)

    async def _read(self, target: Target) -> bytearray:
        if self._session is None:
            raise McmError("the scraper is not open")
        text = bytearray()
        async with self._session.get(target.url, ssl=self._context(target), allow_redirects=False) as answer:
            if answer.status != 200:
                raise McmError(f"{target.url} answers {answer.status}")
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > self._limits.bytes_each:
                    raise McmError(f"{target.url} sends more than {self._limits.bytes_each} bytes")
        return text

    def _context(self, target: Target) -> ssl.SSLContext:
        context = self._contexts.get(target.authority)
        if context is None:
            config = ClusterConfig(
                server=target.url,
                ca_data=target.authority,
                client_certificate=self._reader.certificate,
                client_key=self._reader.key,
            )
            context = self._contexts[target.authority] = ssl_context(config)
        return context
