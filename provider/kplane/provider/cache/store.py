"""The objects of one kind, as bytes until somebody reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from kplane.provider.cache.entry import Entry, EntryReader, Key
from kplane.provider.cache.indexes import Extract, FieldIndexes
from kplane.provider.cache.selectors import parse_label_selector

__all__ = ["Store"]


class Store:
    """Holds entries by namespace and name, and finds them by labels and indexed fields."""

    __slots__ = ("_indexes", "_namespaces", "reader", "size_bytes")

    def __init__(self, reader: EntryReader) -> None:
        self.reader: Final = reader
        self.size_bytes = 0
        """Bytes of all objects; what Python needs for each of them, about half a kilobyte, comes on top."""
        self._namespaces: dict[str, dict[str, Entry]] = {}
        self._indexes = FieldIndexes(reader.resource, decode=reader.decode)

    def __iter__(self) -> Iterator[Entry]:
        """Give all entries."""
        return itertools.chain.from_iterable(each.values() for each in self._namespaces.values())

    def get(self, key: Key) -> Entry | None:
        """Return one entry."""
        found = self._namespaces.get(key[0])
        return None if found is None else found.get(key[1])

    def put(self, entry: Entry) -> None:
        """Add an entry, in the place of the one that has its key."""
        namespace, name = entry.key
        found = self._namespaces.setdefault(namespace, {})
        self._forget(found.get(name))
        found[name] = entry
        self.size_bytes += len(entry.raw)
        self._indexes.insert(entry)

    def pop(self, key: Key) -> Entry | None:
        """Remove one entry, and return it."""
        namespace, name = key
        found = self._namespaces.get(namespace)
        entry = None if found is None else found.pop(name, None)
        self._forget(entry)
        if not found:
            self._namespaces.pop(namespace, None)
        return entry

    def clear(self) -> None:
        """Forget all entries; indexes stay."""
        for entry in tuple(self):
            self.pop(entry.key)

    def add_index(self, field: str, extract: Extract) -> None:
        """Index a field; see `FieldIndexes.add`."""
        self._indexes.add(field, extract, self)

    def select(
        self,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field: Mapping[str, str] | None = None,
    ) -> list[Entry]:
        """Return the entries of a namespace (None: of all) that match a selector and have these values of fields."""
        found: list[Entry]
        if field:
            found = [entry for entry in self._indexes.find(field) if namespace in {None, entry.namespace}]
        elif namespace is None:
            found = list(self)
        else:
            found = list(self._namespaces.get(namespace, {}).values())
        if not label_selector:
            return found
        matches = parse_label_selector(label_selector)
        return [entry for entry in found if matches(entry.labels)]

    def _forget(self, entry: Entry | None) -> None:
        if entry is not None:
            self.size_bytes -= len(entry.raw)
            self._indexes.remove(entry)
