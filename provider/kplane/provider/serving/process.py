"""Main functions of programs that run until SIGTERM or SIGINT, with logs and a raised limit of open files."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kplane.provider.access.proxies import ignored_proxy
from kplane.provider.errors import ProviderError
from kplane.provider.logs import json_logging, text_logging
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.open_files import raise_limit, watching_open_files

__all__ = ["run", "run_process", "run_until_signalled"]

log: Final = logging.getLogger(__name__)

_NEW_OBJECTS: Final = 10_000
"""Number of new objects that starts a garbage collection. Python's default is much lower, and costs CPU time."""


def run(what: Manager | Callable[[asyncio.Event], Awaitable[None]], *, log_level: str = "INFO") -> None:
    """Run a manager until SIGTERM or SIGINT, as the last call of a controller's program.

    `what` is a Manager, or a coroutine function for programs that open resources around the manager. The function gets
    an event, and must return after the event is set. The loop is uvloop if it is installed. The log is text on a
    terminal, and JSON elsewhere. A ProviderError is logged, and ends the process with status 1.
    """
    raise_limit()
    logging_to = text_logging if sys.stderr.isatty() else json_logging
    with logging_to(log_level):
        _run(what.run if isinstance(what, Manager) else what, name="the manager", expected=(ProviderError,))


def run_process(
    run: Callable[[asyncio.Event], Awaitable[None]],
    *,
    name: str,
    log_level: str,
    expected: tuple[type[Exception], ...],
) -> None:
    """Call `run_until_signalled` on uvloop. An expected error is logged, and ends the process with status 1."""
    raise_limit()
    with json_logging(log_level):
        _run(run, name=name, expected=expected)


def _run(run: Callable[[asyncio.Event], Awaitable[None]], *, name: str, expected: tuple[type[Exception], ...]) -> None:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run_until_signalled(run))
    except expected as error:
        log.error("%s cannot run: %s", name, error)  # noqa: TRY400 - the sentence says it all
        sys.exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def run_until_signalled(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Call `run` with an event that SIGTERM and SIGINT set. Warns of HTTPS_PROXY, and when few open files are left."""
    if (sentence := ignored_proxy()) is not None:
        log.warning("%s", sentence)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _rare_collections():
        async with watching_open_files():
            await run(stop)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Make garbage collections of new objects rare, and exclude the objects that exist now, such as modules."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
