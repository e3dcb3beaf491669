"""Logging as JSON lines, with fields of the current context."""

from __future__ import annotations

import datetime as dt
import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from typing_extensions import override

__all__ = ["ContextFilter", "json_logging", "log_fields"]

_fields: Final[ContextVar[Mapping[str, str]]] = ContextVar("log fields", default={})  # noqa: B039 - never mutated

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields"}


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Add these fields to every record inside of this context: `log_fields(cluster="acme")`. New tasks inherit them."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


class ContextFilter(logging.Filter):
    """Gives each record its fields as `context`, such as `cluster=acme namespace=b name=c`, for other formats.

    Add it to a handler: `handler.addFilter(ContextFilter())`, with `%(context)s` in the format.
    """

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        record.context = " ".join(f"{name}={value}" for name, value in _fields.get().items())
        return True


@contextmanager
def json_logging(level: str, *, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Log JSON lines to the stream inside of this context. A thread writes, so that a slow reader blocks no loop."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    back = logging.StreamHandler(stream)
    back.setFormatter(_JsonFormatter())
    listener = logging.handlers.QueueListener(records, back)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = [_Front(records)]
    root.setLevel(level)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.handlers[:], root.level = before


class _Front(logging.handlers.QueueHandler):
    """Takes the fields from the context of the caller."""

    @override
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.fields = _fields.get()
        prepared: logging.LogRecord = super().prepare(record)
        return prepared


class _JsonFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.dumps(line | extra, default=str)
