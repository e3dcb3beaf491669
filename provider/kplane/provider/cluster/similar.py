"""Combines similar Events, so that a message with a number in it does not make an Event for each number."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["SimilarEvents"]

_MESSAGES_AT_MOST: Final = 10
_FORGOTTEN_SECONDS: Final = 600.0
_GROUPS_AT_MOST: Final = 1000
_COMBINED: Final = "(combined from similar events): "


class _Note(NamedTuple):
    """The text of an Event, and what its name is made from: events of one key are a series."""

    text: str
    key: str


@dataclass(slots=True)
class _Group:
    observed_at: float
    messages: set[str] = field(default_factory=set)


class SimilarEvents:
    """Counts the messages of Events that differ in nothing else, by the rules of the aggregator of client-go.

    The first ten messages of a group are Events of their own. Further messages are combined, until there was none in
    the group for ten minutes. It keeps the thousand groups that were used last.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    def note(self, group: str, message: str, *, now: float) -> _Note:
        """Return the note of an Event with this message; `now` is in seconds, on a clock that runs on."""
        known = self._groups.get(group)
        if known is None or now - known.observed_at > _FORGOTTEN_SECONDS:
            known = self._groups[group] = _Group(now)
        known.observed_at = now
        self._groups.move_to_end(group)
        if len(self._groups) > _GROUPS_AT_MOST:
            _ = self._groups.popitem(last=False)
        if message not in known.messages and len(known.messages) >= _MESSAGES_AT_MOST:
            return _Note(_COMBINED + message, _COMBINED)
        known.messages.add(message)
        return _Note(message, message)
