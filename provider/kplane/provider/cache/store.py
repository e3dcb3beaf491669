"""Store of the objects of a kind, as undecoded JSON, with indexes of their fields."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, cast

from kplane.provider.cache.entry import Entry, EntryReader, Key
from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, ObjectT, TypedKind, typed_of
from kplane.provider.errors import DecodeFailed, ProviderError

__all__ = ["Extract", "FieldIndexes", "Store", "extract_of", "require_same"]

log: Final = logging.getLogger(__name__)

Extract = Callable[[dict[str, Any]], Iterable[str]]
"""Returns the index values of an object, which has no managedFields."""


class FieldIndexes:
    """Finds the entries of a kind by values of their fields."""

    __slots__ = ("_decode", "_entries_by_value", "_extracts", "_resource")

    def __init__(self, resource: Resource, *, decode: Callable[[Entry], dict[str, Any]]) -> None:
        self._resource = resource
        self._decode = decode
        self._extracts: dict[str, Extract] = {}
        self._entries_by_value: dict[tuple[str, str], dict[Key, Entry]] = {}

    def add(self, field: str, extract: Extract, entries: Iterable[Entry]) -> None:
        """Index a field of all entries. Adding the same function twice has no effect.

        Raises ProviderError if another function indexes the field.
        """
        existing = self._extracts.get(field)
        require_same(existing, extract, kind=self._resource, field=field)
        if existing is None:
            self._extracts[field] = extract
            for entry in entries:
                self._index(entry, {field: extract})

    def insert(self, entry: Entry) -> None:
        """Index a new entry."""
        if self._extracts:
            self._index(entry, self._extracts)

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        for pair in entry.indexed:
            entries = self._entries_by_value[pair]
            del entries[entry.key]
            if not entries:
                del self._entries_by_value[pair]

    def find(self, wanted: Mapping[str, str]) -> list[Entry]:
        """Return the entries that match all of these values. Raises ProviderError for a field without index."""
        for field in wanted:
            if field not in self._extracts:
                raise ProviderError(f"{self._resource} has no index {field!r}: call index_field for it before")
        by_size = sorted((self._entries_by_value.get(pair, {}) for pair in wanted.items()), key=len)
        if not by_size:
            return []
        first, *others = by_size
        return [entry for key, entry in first.items() if all(key in other for other in others)]

    def _index(self, entry: Entry, extracts: Mapping[str, Extract]) -> None:
        try:
            obj = self._decode(entry)
        except ProviderError as error:
            log.warning("failed to index %s %s: %s", self._resource, "/".join(entry.key), error)
            return
        pairs: dict[tuple[str, str], None] = {}
        for field, extract in extracts.items():
            try:
                values = extract(obj)
                pairs |= dict.fromkeys((field, value) for value in ([values] if isinstance(values, str) else values))
            except DecodeFailed as error:
                log.warning("failed to index %s %s by %r: %s", self._resource, "/".join(entry.key), field, error)
            except Exception:
                log.exception("failed to index %s %s by %r", self._resource, "/".join(entry.key), field)
        for pair in pairs:
            self._entries_by_value.setdefault(pair, {})[entry.key] = entry
        entry.indexed = (*entry.indexed, *pairs)


@dataclass(frozen=True, slots=True)
class _TypedExtract(Generic[ObjectT]):
    """Extracts values from an instance of a class. Equal functions compare equal, so a field may be added twice."""

    kind: TypedKind[ObjectT]
    extract: Callable[[ObjectT], Iterable[str]]

    def __call__(self, obj: dict[str, Any]) -> Iterable[str]:
        return self.extract(self.kind.decode(obj, source="the cache"))


def extract_of(kind: Kind[ObjectT], extract: Callable[[ObjectT], Iterable[str]]) -> Extract:
    """Adapt an extract function for a class to a function for dicts; other functions are returned as they are."""
    typed = typed_of(kind)
    return cast("Extract", extract) if typed is None else _TypedExtract(typed, extract)


def require_same(known: Extract | None, extract: Extract, *, kind: object, field: str) -> None:
    """Raise ProviderError if another function, `known`, indexes the field."""
    if known is not None and known != extract:
        raise ProviderError(f"field {field!r} of {kind} is already indexed by another function: choose another name")


class Store:
    """Holds entries by namespace and name, and finds them by labels and indexed fields."""

    __slots__ = ("_indexes", "_namespaces", "reader", "size_bytes")

    def __init__(self, reader: EntryReader) -> None:
        self.reader: Final = reader
        self.size_bytes = 0
        """Size of the JSON of all objects. Python needs about half a kilobyte more for each object."""
        self._namespaces: dict[str, dict[str, Entry]] = {}
        self._indexes = FieldIndexes(reader.resource, decode=reader.decode)

    def __iter__(self) -> Iterator[Entry]:
        """Return all entries."""
        return itertools.chain.from_iterable(entries.values() for entries in self._namespaces.values())

    def get(self, key: Key) -> Entry | None:
        """Return an entry, or None."""
        entries = self._namespaces.get(key[0])
        return None if entries is None else entries.get(key[1])

    def put(self, entry: Entry) -> None:
        """Add or replace an entry."""
        namespace, name = entry.key
        entries = self._namespaces.setdefault(namespace, {})
        self._forget(entries.get(name))
        entries[name] = entry
        self.size_bytes += len(entry.raw)
        self._indexes.insert(entry)

    def pop(self, key: Key) -> Entry | None:
        """Remove and return an entry."""
        namespace, name = key
        entries = self._namespaces.get(namespace)
        entry = None if entries is None else entries.pop(name, None)
        self._forget(entry)
        if not entries:
            self._namespaces.pop(namespace, None)
        return entry

    def clear(self) -> None:
        """Remove all entries; indexes stay."""
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
        """Return the entries of a namespace (None: of all) that match the selector and the values of fields."""
        entries: list[Entry]
        if field:
            entries = [entry for entry in self._indexes.find(field) if namespace in {None, entry.namespace}]
        elif namespace is None:
            entries = list(self)
        else:
            entries = list(self._namespaces.get(namespace, {}).values())
        if not label_selector:
            return entries
        matches = parse_label_selector(label_selector)
        return [entry for entry in entries if matches(entry.labels)]

    def _forget(self, entry: Entry | None) -> None:
        if entry is not None:
            self.size_bytes -= len(entry.raw)
            self._indexes.remove(entry)
