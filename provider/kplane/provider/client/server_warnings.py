"""Warnings of API servers: unknown fields, deprecated kinds, and messages of admission webhooks."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

__all__ = ["ApiWarning", "Headers", "WarningHandler", "WarningLog", "warnings_of"]

logger: Final = logging.getLogger(__name__)

_MAX_TEXT: Final = 500
_MAX_PER_ANSWER: Final = 20
_MAX_REMEMBERED: Final = 1000
# RFC 7234: a code, the agent, and the text in quotes. Kubernetes sends only the code 299.
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class ApiWarning(NamedTuple):
    """A warning that came with an answer.

    `kind` is the name of the kind, such as `apps/v1/Deployment`, or the path of another request. `object` is namespace
    and name, and empty for a collection. `cluster` is the name of the cluster, or the URL of its API server.
    """

    text: str
    kind: str
    object: str
    cluster: str


WarningHandler = Callable[[ApiWarning], None]
"""Called with each warning that API servers send."""


class Headers(Protocol):
    """Headers of an answer."""

    def getall(self, key: str, default: list[str]) -> list[str]:
        """Return all values of a header."""
        ...


class WarningLog:
    """Logs each text once for a kind, with the first object and cluster. Remembers the last 1000 texts."""

    def __init__(self) -> None:
        self._logged: Final[OrderedDict[tuple[str, str], None]] = OrderedDict()

    def log(self, warning: ApiWarning) -> None:
        """Log a warning, unless its text was logged for its kind."""
        key = warning.kind, warning.text
        if key in self._logged:
            self._logged.move_to_end(key)
            return
        self._logged[key] = None
        if len(self._logged) > _MAX_REMEMBERED:
            self._logged.popitem(last=False)
        about = f"{warning.kind} {warning.object}".rstrip()
        logger.warning("the API server of %s warns about %s: %s", warning.cluster, about, warning.text)


def warnings_of(headers: Headers) -> Iterator[str]:
    """Yield the texts of the warnings in the headers of an answer; long ones are cut."""
    texts = (match[1] for value in headers.getall("Warning", []) for match in _WARNING.finditer(value))
    for text, _ in zip(texts, range(_MAX_PER_ANSWER), strict=False):
        plain = re.sub(r"\\(.)", r"\1", text)[:_MAX_TEXT]
        # A hostile API server may send control characters.
        yield "".join(char if char.isprintable() else " " for char in plain)
