"""Applies what a feed finds to the store of an informer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kplane.provider.cache.entry import Change, Entry, Object
from kplane.provider.cache.event import Event, EventKind, Handlers
from kplane.provider.cache.store import Store
from kplane.provider.errors import AnswerTooLarge

__all__ = ["Mirror", "Transform"]

log: Final = logging.getLogger(__name__)

Transform = Callable[[Object], Object]
"""Changes an object before it is kept: to leave out unused parts. Its identity must stay."""

_SLICE: Final = 100


class Mirror:
    """Applies what one feed finds to the store of an informer, and calls its handlers.

    The feed finds the objects of `namespace`, or all. `changed` is called when it is synced, and when it is refused.
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
        """Whether all objects were read once."""
        self._store = store
        self._handlers = handlers
        self._namespace = namespace
        self._transform = transform
        self._bytes_at_most = bytes_at_most
        self._changed = changed

    async def replace(self, entries: list[Entry]) -> None:
        """Make these all objects that there are."""
        present = {entry.key for entry in entries}
        gone = [entry for entry in self._store.select(namespace=self._namespace) if entry.key not in present]
        for number, entry in enumerate(gone + entries, start=1):
            if number > len(gone):
                self._upsert(entry)
            else:
                self._delete(entry)
            if not number % _SLICE:
                await asyncio.sleep(0)
        if not self.synced:
            self.synced = True
            self._changed()

    def apply(self, changes: list[Change]) -> None:
        """Apply the next changes."""
        for change in changes:
            if change.type == "DELETED":
                self._delete(change.entry)
            else:
                self._upsert(change.entry)

    def clear(self) -> None:
        """Remove all objects, because their namespace has left the scope."""
        for entry in self._store.select(namespace=self._namespace):
            self._delete(entry)

    def refused(self) -> None:
        """Tell those who wait for the objects."""
        self._changed()

    def _upsert(self, entry: Entry) -> None:
        known = self._store.get(entry.key)
        if known is not None and known.uid != entry.uid:
            self._delete(known)
            known = None
        if known is not None and known.resource_version == entry.resource_version:
            return
        entry = self._transformed(entry)
        size_bytes = self._store.size_bytes + len(entry.raw) - (0 if known is None else len(known.raw))
        if self._bytes_at_most is not None and size_bytes > self._bytes_at_most:
            raise AnswerTooLarge(
                f"all {self._store.reader.resource.plural} of the server are more than {self._bytes_at_most} bytes"
            )
        self._store.put(entry)
        self._notify("ADDED" if known is None else "MODIFIED", entry, known)

    def _delete(self, entry: Entry) -> None:
        known = self._store.pop(entry.key)
        if known is not None:
            # A transform runs once for each state: the last one is kept already.
            self._notify("DELETED", entry if self._transform is None else known, None)

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
