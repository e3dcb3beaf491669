"""Applies changes of a feed, and answers to writes, to the store of an informer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kplane.provider.cache.entry import Change, Entry, Key, Object, version_of
from kplane.provider.cache.event import Event, EventKind, Handlers
from kplane.provider.cache.own_writes import OwnWrites
from kplane.provider.cache.store import Store
from kplane.provider.errors import AnswerTooLarge

__all__ = ["Mirror", "Transform"]

log: Final = logging.getLogger(__name__)

Transform = Callable[[Object], Object]
"""Changes an object before it is stored, to drop unused parts. The object must keep its identity."""

_SLICE: Final = 100


class Mirror:
    """Applies the changes of a feed to the store of an informer, and calls the handlers of the informer.

    The feed reads the objects of `namespace`, or of all. `changed` is called after each list, and when the server
    refuses the kind. `observe` and `observe_removal` apply answers to writes of this process, so that readers
    see their own writes.
    """

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        *,
        namespace: str | None,
        transform: Transform | None,
        bytes_at_most: int | None,
        changed: Callable[[], None],
    ) -> None:
        self.synced = False
        """Whether the first list is complete."""
        self.lists_begun = 0
        self.last_listed = 0
        """Number of the latest list that is complete, as `lists_begun` counts them."""
        self._store = store
        self._handlers = handlers
        self._namespace = namespace
        self._transform = transform
        self._bytes_at_most = bytes_at_most
        self._changed = changed
        self._own_writes = OwnWrites()

    def reset(self) -> None:
        """Forget the state; the caller has emptied the store."""
        self.synced = False
        self._own_writes.reset()

    def begin(self) -> None:
        """Note that a list of the feed begins."""
        self.lists_begun += 1
        self._own_writes.begin_list()

    async def replace(self, entries: list[Entry], *, resource_version: str) -> None:
        """Replace all objects by these, except objects that this process has written since the list began."""
        self._own_writes.take_list(entries, version=version_of(resource_version))
        number = self.lists_begun
        try:
            await self._replace(entries)
        finally:
            self._own_writes.end_list()
        self.last_listed = number
        self.synced = True
        self._changed()

    async def _replace(self, entries: list[Entry]) -> None:
        present = {entry.key for entry in entries}
        deleted = [entry for entry in self._store.select(namespace=self._namespace) if entry.key not in present]
        for number, entry in enumerate(deleted + entries, start=1):
            # Other tasks run between slices and may write an object, so each one is checked here.
            if number > len(deleted):
                if not self._own_writes.supersedes(entry):
                    self._upsert(entry)
            elif not self._own_writes.holds(entry.key):
                self._delete(entry)
            if not number % _SLICE:
                await asyncio.sleep(0)

    def apply(self, changes: list[Change], *, resource_version: str) -> None:
        """Apply the next changes, up to a resourceVersion."""
        for change in changes:
            deleted = change.type == "DELETED"
            if self._own_writes.is_stale(change.entry, deleted=deleted):
                continue
            if deleted:
                self._delete(change.entry)
            else:
                self._upsert(change.entry)
        for key in self._own_writes.advance(version_of(resource_version)):
            # The watch sent no event: the object was deleted before the answer came, or no selector matches it.
            if (existing := self._store.get(key)) is not None:
                self._delete(existing)

    def observe(self, entry: Entry, *, is_selected: bool) -> None:
        """Apply the answer to a write, unless the watch is ahead. `is_selected` tells whether the labels match."""
        existing = self._store.get(entry.key)
        if not self._own_writes.accepts(entry, known=existing):
            return
        if is_selected:
            try:
                self._upsert(entry)
            except AnswerTooLarge:
                return  # The feed reports the error when the watch brings the object.
        elif existing is not None:
            self._delete(existing)
        else:
            return
        self._own_writes.note(entry)

    def observe_removal(self, key: Key, *, uid: str, version: int) -> None:
        """Apply the removal of an object by a write. `version` is the last resourceVersion, or 0 if it is unknown."""
        existing = self._store.get(key)
        is_known = existing is not None and existing.uid == uid
        if existing is not None and is_known:
            self._delete(existing)
        self._own_writes.note_removed(key, uid=uid, version=version, is_known=is_known)

    def clear(self) -> None:
        """Remove all objects after their namespace has left the scope."""
        for entry in self._store.select(namespace=self._namespace):
            self._delete(entry)

    def refused(self) -> None:
        """Notify tasks that wait for the first list."""
        self._changed()

    def _upsert(self, entry: Entry) -> None:
        existing = self._store.get(entry.key)
        if existing is not None and existing.uid != entry.uid:
            self._delete(existing)
            existing = None
        if existing is not None and existing.resource_version == entry.resource_version:
            return
        entry = self._transformed(entry)
        size_bytes = self._store.size_bytes + len(entry.raw) - (0 if existing is None else len(existing.raw))
        if self._bytes_at_most is not None and size_bytes > self._bytes_at_most:
            raise AnswerTooLarge(
                f"all {self._store.reader.resource.plural} of the server are more than {self._bytes_at_most} bytes"
            )
        self._store.put(entry)
        self._notify("ADDED" if existing is None else "MODIFIED", entry, existing)

    def _delete(self, entry: Entry) -> None:
        existing = self._store.pop(entry.key)
        if existing is not None:
            # A transform runs once for each state: the store has the transformed last state.
            self._notify("DELETED", entry if self._transform is None else existing, None)

    def _transformed(self, entry: Entry) -> Entry:
        if self._transform is None:
            return entry
        reader = self._store.reader
        try:
            changed = reader.encode(self._transform(reader.decode(entry)))
            if (changed.key, changed.uid, changed.resource_version) != (entry.key, entry.uid, entry.resource_version):
                raise ValueError("it has another identity")  # noqa: TRY301 - is logged as whatever a transform raises
        except Exception:
            log.exception("failed to transform %s %s; keeping it as it is", reader.resource, "/".join(entry.key))
            return entry
        return changed

    def _notify(self, kind: EventKind, entry: Entry, old: Entry | None) -> None:
        if registrations := self._handlers.of(entry.namespace):
            event = Event(kind, entry, reader=self._store.reader, old=old, initial=not self.synced)
            for registration in registrations:
                registration.see(event)
