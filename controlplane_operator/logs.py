"""Logging as JSON lines, each with the object that was worked on."""

from __future__ import annotations

import datetime as dt
import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TextIO

from typing_extensions import override

__all__ = ["about", "json_logging"]

_object: Final[ContextVar[str | None]] = ContextVar("object", default=None)

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "object"}


@contextmanager
def about(kind: str, *, name: str) -> Iterator[None]:
    """Have every record within say that it is about this object."""
    token = _object.set(f"{kind}/{name}")
    try:
        yield
    finally:
        _object.reset(token)


@contextmanager
def json_logging(level: str, *, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Log to the stream as JSON lines; a thread writes them, so that a slow reader never blocks the loop."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    front = _Front(records)
    back = logging.StreamHandler(stream)
    back.setFormatter(_JsonFormatter())
    listener = logging.handlers.QueueListener(records, back)
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = [front]
    root.setLevel(level)
    # kopf tells of every event and of being in a thread; its errors are of interest.
    logging.getLogger("kopf").setLevel(max(logging.ERROR, root.level))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.handlers[:], root.level = before


class _Front(logging.handlers.QueueHandler):
    """Notes the object while still in the context of the one who logs."""

    @override
    def prepare(self, record: logging.LogRecord) -> Any:
        record.object = _object.get()
        return super().prepare(record)


class _JsonFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if about_object := getattr(record, "object", None):
            line["object"] = about_object
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.dumps(line | extra, default=str)
