"""Compares answers to writes of this process with events of the watch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kplane.provider.cache.entry import Entry, Key

__all__ = ["OwnWrites"]

_MAX_PENDING: Final = 10_000
"""Maximum number of writes that wait for the watch. Further writes reach the cache by the watch alone."""


@dataclass(slots=True)
class _Pending:
    """A write whose event has not come yet. With `before_list`, the next list contains it."""

    version: int
    before_list: bool = False


class OwnWrites:
    """Remembers the writes of this process until the watch of one mirror brings them.

    An answer and its event may overtake each other. Their resourceVersions decide (KEP-5504): an answer counts only if
    the watch has not reached it yet, and an event only if it is not older than the answer. Removed objects are
    remembered by uid, because the answer to a deletion has no resourceVersion. Answers without a comparable
    resourceVersion are ignored, and the watch brings their objects.

    A watch sends its events in the order of their resourceVersions. If the watch passes an answer without an event, the
    object does not belong to the mirror, and `advance` returns its key.
    """

    def __init__(self) -> None:
        self._progress = 0
        """resourceVersion up to which the watch has sent all changes; 0 if unknown."""
        self._pending: dict[Key, _Pending] = {}
        self._removed: dict[str, _Pending] = {}
        """Removed objects by uid. The version is the last resourceVersion, or 0 if unknown."""
        self._is_listing = False
        self._listed: Collection[Key] = ()
        """Keys of the list that is being stored."""

    def reset(self) -> None:
        """Forget all writes."""
        self._progress = 0
        self._pending, self._removed = {}, {}
        self._is_listing, self._listed = False, ()

    def begin_list(self) -> None:
        """Note that a list begins, which contains all writes that were answered before."""
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
        # The server made the list after the removal if the object is missing, so no event will follow.
        uids = {entry.uid for entry in entries}
        self._removed = {
            uid: removed for uid, removed in self._removed.items() if not removed.before_list and uid in uids
        }

    def end_list(self) -> None:
        """Note that the list is in the store."""
        self._is_listing, self._listed = False, ()

    def accepts(self, entry: Entry, *, known: Entry | None) -> bool:
        """Tell whether an answer is newer than the known state of the object, and than the watch."""
        version = entry.version
        if not version or entry.uid in self._removed or len(self._pending) >= _MAX_PENDING:
            return False
        if known is not None and not 0 < known.version < version:
            return False
        pending = self._pending.get(entry.key)
        if pending is not None and version <= pending.version:
            return False
        # A list is stored in slices, so a listed object may be missing from the store.
        return version > self._progress or entry.key in self._listed

    def note(self, entry: Entry) -> None:
        """Remember an answer that was accepted."""
        if entry.version > self._progress:
            self._pending[entry.key] = _Pending(entry.version)

    def note_removed(self, key: Key, *, uid: str, version: int, is_known: bool) -> None:
        """Remember that a write removed an object. `is_known` tells whether the store had the object.

        The watch sends the removal of a known object. The removal of an unknown object matters only during a list.
        """
        if is_known:
            self._pending.pop(key, None)
        if (is_known or self._is_listing) and len(self._removed) < _MAX_PENDING:
            self._removed[uid] = _Pending(version)

    def holds(self, key: Key) -> bool:
        """Tell whether a write of this object is newer than the list."""
        return key in self._pending

    def supersedes(self, entry: Entry) -> bool:
        """Tell whether an object of a list is older than the last write of the object."""
        pending = self._pending.get(entry.key)
        return entry.uid in self._removed or (pending is not None and 0 < entry.version < pending.version)

    def is_stale(self, entry: Entry, *, deleted: bool) -> bool:
        """Tell whether an event of the watch is older than a write; otherwise forget the write."""
        removed = self._removed.get(entry.uid)
        if removed is not None:
            # A newer event than the last state shows that the object was not removed.
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
        """Note that the watch has sent all changes up to a resourceVersion.

        Returns the keys of writes that the watch has passed without an event, and forgets the writes.
        """
        self._progress = max(self._progress, version)
        if not self._pending:
            return []
        passed = [key for key, pending in self._pending.items() if pending.version <= self._progress]
        for key in passed:
            del self._pending[key]
        return passed
