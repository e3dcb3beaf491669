"""Logging as JSON lines or as text, with fields of the current context."""

from __future__ import annotations

import datetime as dt
import json
import logging
import logging.handlers
import queue
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from typing_extensions import override

from kplane.provider.aio.setting import Setting

__all__ = ["ContextFilter", "json_logging", "log_fields", "text_logging"]

_fields: Final[ContextVar[Mapping[str, str]]] = ContextVar("log fields", default={})  # noqa: B039 - never mutated

_ESCAPED: Final = {"\n": "\n    ", "\t": "    "}

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields"}


def log_fields(**fields: str) -> AbstractContextManager[None]:
    """Add these fields to every record inside of this context: `log_fields(cluster="acme")`. New tasks inherit them."""
    return Setting(_fields, {**_fields.get(), **fields})


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
def json_logging(level: str, *, stream: TextIO | None = None) -> Iterator[None]:
    """Log JSON lines inside of this context, to stderr by default. A thread writes: a slow reader blocks no loop."""
    with _logging(level, _JsonFormatter(), stream=stream):
        yield


@contextmanager
def text_logging(level: str, *, stream: TextIO | None = None) -> Iterator[None]:
    """Log lines for people, as `json_logging` does for programs."""
    with _logging(level, _TextFormatter(), stream=stream):
        yield


@contextmanager
def _logging(level: str, formatter: logging.Formatter, *, stream: TextIO | None) -> Iterator[None]:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    back = logging.StreamHandler(stream)
    back.setFormatter(formatter)
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


class _TextFormatter(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        time = dt.datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{time[:23]} {record.levelname.lower():7} {record.getMessage()}{fields}"
        # Clusters send parts of it, which must not steer the terminal or look like lines of their own.
        return "".join(each if each.isprintable() else _ESCAPED.get(each, ascii(each)[1:-1]) for each in line)
