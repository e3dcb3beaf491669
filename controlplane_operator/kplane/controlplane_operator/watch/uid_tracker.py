"""Objects that have one name, one after the other: what the former one had is not the next one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kplane.controlplane_operator.watch.cache import Key

__all__ = ["UIDTracker"]


class UIDTracker:
    """Remembers by its uid who had each name when that was looked at last."""

    def __init__(self) -> None:
        self._uids: Final[dict[Key, str]] = {}

    def former(self, key: Key, *, uid: str | None) -> str | None:
        """Return the uid of who had the name and is gone, where something of it may be left; `uid` has it now."""
        known = self._uids.get(key)
        return known if known != uid else None

    def succeed(self, key: Key, *, uid: str | None) -> None:
        """Remember who has the name now, None if nobody: nothing of the former one is left."""
        if uid is None:
            self._uids.pop(key, None)
        else:
            self._uids[key] = uid

    def of(self, concerned: Callable[[str], bool]) -> list[Key]:
        """Return the names under which those are remembered whose uid is as asked for."""
        return [key for key, uid in self._uids.items() if concerned(uid)]
