"""Combines similar Events, so that a message with a number in it does not make an Event for each number."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["SimilarEvents"]

_MAX_MESSAGES: Final = 10
_FORGOTTEN_SECONDS: Final = 600.0
_MAX_GROUPS: Final = 1000
_COMBINED: Final = "(combined from similar events): "


class _Note(NamedTuple):
    """The text of an Event, and the key for its name: Events with the same key form a series."""

    text: str
    key: str


@dataclass(slots=True)
class _Group:
    observed_at: float
    messages: set[str] = field(default_factory=set)


class SimilarEvents:
    """Counts the messages of Events that differ in nothing else, by the rules of the aggregator of client-go.

    The first ten messages of a group are Events of their own. Further messages are combined, until the group had no
    message for ten minutes. The thousand most recently used groups are kept.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    def note(self, group: str, message: str, *, now: float) -> _Note:
        """Return the note of an Event with this message; `now` is in seconds of a monotonic clock."""
        existing = self._groups.get(group)
        if existing is None or now - existing.observed_at > _FORGOTTEN_SECONDS:
            existing = self._groups[group] = _Group(now)
        existing.observed_at = now
        self._groups.move_to_end(group)
        if len(self._groups) > _MAX_GROUPS:
            _ = self._groups.popitem(last=False)
        if message not in existing.messages and len(existing.messages) >= _MAX_MESSAGES:
            return _Note(_COMBINED + message, _COMBINED)
        existing.messages.add(message)
        return _Note(message, message)
