"""Compares what writes of this process answered with what the watch brings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kplane.provider.cache.entry import Entry, Key

__all__ = ["OwnWrites"]

_MAX_PENDING: Final = 10_000
"""Writes that wait for the watch. Beyond these, the watch alone brings what was written."""


@dataclass(slots=True)
class _Pending:
    """A write that the watch has not brought yet. With `before_list`, the list that was begun after it decides."""

    version: int
    before_list: bool = False


class OwnWrites:
    """Remembers the writes of this process until the watch of one mirror brings them.

    An answer and the watch may overtake each other. The resourceVersion decides (KEP-5504): an answer counts only if
    the watch has not come that far, and an event only if it is not older than the answer. An object that a write
    removed is known by its uid, because the answer to a deletion has no resourceVersion. Answers without a comparable
    resourceVersion are left to the watch.

    A watch sends its events in the order of their resourceVersions. So an answer that the watch has passed without an
    event is not among the objects of the mirror: `advance` returns its key.
    """

    def __init__(self) -> None:
        self._progress = 0
        """resourceVersion up to which the watch has brought all changes; 0 if it is not known."""
        self._pending: dict[Key, _Pending] = {}
        self._removed: dict[str, _Pending] = {}
        """By uid. The version is that of the last state, or 0 if it is not known."""
        self._is_listing = False
        self._listed: Collection[Key] = ()
        """Keys of the list that is being taken in."""

    def reset(self) -> None:
        """Forget all writes."""
        self._progress = 0
        self._pending, self._removed = {}, {}
        self._is_listing, self._listed = False, ()

    def begin_list(self) -> None:
        """Note that a list is asked for: it has all writes that were answered before."""
        self._is_listing = True
        for pending in (*self._pending.values(), *self._removed.values()):
            pending.before_list = True

    def take_list(self, entries: Collection[Entry], *, version: int) -> None:
        """Keep only the writes that this list, made at a resourceVersion, may lack."""
        self._progress = version
        self._listed = {entry.key for entry in entries}
        self._pending = {
            key: pending
            for key, pending in self._pending.items()
            if not pending.before_list and pending.version > version
        }
        # A list that was made after the removal lacks the object, and no event will tell of it.
        uids = {entry.uid for entry in entries}
        self._removed = {
            uid: removed for uid, removed in self._removed.items() if not removed.before_list and uid in uids
        }

    def end_list(self) -> None:
        """Note that the list is in the store."""
        self._is_listing, self._listed = False, ()

    def accepts(self, entry: Entry, *, known: Entry | None) -> bool:
        """Tell whether an answer is newer than the known state of the object, and than what the watch brought."""
        version = entry.version
        if not version or entry.uid in self._removed or len(self._pending) >= _MAX_PENDING:
            return False
        if known is not None and not 0 < known.version < version:
            return False
        pending = self._pending.get(entry.key)
        if pending is not None and version <= pending.version:
            return False
        # A list is taken in by slices: an object of it may not be in the store yet.
        return version > self._progress or entry.key in self._listed

    def note(self, entry: Entry) -> None:
        """Remember an answer that was accepted."""
        if entry.version > self._progress:
            self._pending[entry.key] = _Pending(entry.version)

    def note_removed(self, key: Key, *, uid: str, version: int, is_known: bool) -> None:
        """Remember that a write removed an object. `is_known` tells whether it was in the store.

        The watch brings the removal of a known object. An unknown one matters only to a list that is under way.
        """
        if is_known:
            self._pending.pop(key, None)
        if (is_known or self._is_listing) and len(self._removed) < _MAX_PENDING:
            self._removed[uid] = _Pending(version)

    def holds(self, key: Key) -> bool:
        """Tell whether a write of this object is newer than the list."""
        return key in self._pending

    def supersedes(self, entry: Entry) -> bool:
        """Tell whether an object of a list is older than what a write made of it."""
        pending = self._pending.get(entry.key)
        return entry.uid in self._removed or (pending is not None and 0 < entry.version < pending.version)

    def is_stale(self, entry: Entry, *, deleted: bool) -> bool:
        """Tell whether an event of the watch is older than a write; otherwise forget the write."""
        removed = self._removed.get(entry.uid)
        if removed is not None:
            # A later state than the last one shows that the object was not removed.
            if not deleted and not 0 < removed.version < entry.version:
                return True
            del self._removed[entry.uid]
        pending = self._pending.get(entry.key)
        if pending is None:
            return False
        if 0 < entry.version < pending.version:
            return True
        del self._pending[entry.key]
        return False

    def advance(self, version: int) -> list[Key]:
        """Note that the watch has brought all changes up to a resourceVersion.

        Returns the objects that it passed without an event for their writes, and forgets the writes.
        """
        self._progress = max(self._progress, version)
        if not self._pending:
            return []
        passed = [key for key, pending in self._pending.items() if pending.version <= self._progress]
        for key in passed:
            del self._pending[key]
        return passed
