"""Finds objects by what their fields say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kplane.provider.cache.entry import Entry, Key
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ProviderError

__all__ = ["Extract", "FieldIndexes", "require_same"]

log: Final = logging.getLogger(__name__)

Extract = Callable[[dict[str, Any]], Iterable[str]]
"""Gives the values by which an object is found; it gets the object without managedFields."""


class FieldIndexes:
    """The field indexes of one kind: for each value of each field, the entries that have it."""

    __slots__ = ("_decode", "_extracts", "_found", "_resource")

    def __init__(self, resource: Resource, *, decode: Callable[[Entry], dict[str, Any]]) -> None:
        self._resource = resource
        self._decode = decode
        self._extracts: dict[str, Extract] = {}
        self._found: dict[tuple[str, str], dict[Key, Entry]] = {}

    def add(self, field: str, extract: Extract, entries: Iterable[Entry]) -> None:
        """Index a field of all entries, those that are there included; the same function twice is fine.

        Raises ProviderError where the field is already indexed by another function.
        """
        known = self._extracts.get(field)
        require_same(known, extract, resource=self._resource, field=field)
        if known is None:
            self._extracts[field] = extract
            for entry in entries:
                self._index(entry, {field: extract})

    def insert(self, entry: Entry) -> None:
        """Index an entry that is new."""
        if self._extracts:
            self._index(entry, self._extracts)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        for pair in entry.indexed:
            found = self._found[pair]
            del found[entry.key]
            if not found:
                del self._found[pair]

    def find(self, wanted: Mapping[str, str]) -> list[Entry]:
        """Return the entries that have all of these values. Raises ProviderError for a field that is not indexed."""
        for field in wanted:
            if field not in self._extracts:
                raise ProviderError(f"{self._resource} has no index {field!r}: call index_field for it before")
        by_size = sorted((self._found.get(pair, {}) for pair in wanted.items()), key=len)
        if not by_size:
            return []
        first, *others = by_size
        return [entry for key, entry in first.items() if all(key in other for other in others)]

    def _index(self, entry: Entry, extracts: Mapping[str, Extract]) -> None:
        try:
            found = self._decode(entry)
        except ProviderError as error:
            log.warning("%s %s is not indexed: %s", self._resource, "/".join(entry.key), error)
            return
        pairs: list[tuple[str, str]] = []
        for field, extract in extracts.items():
            try:
                values = extract(found)
                pairs += [(field, value) for value in ([values] if isinstance(values, str) else values)]
            except Exception:
                log.exception("index %r failed for %s %s", field, self._resource, "/".join(entry.key))
        pairs = list(dict.fromkeys(pairs))
        for pair in pairs:
            self._found.setdefault(pair, {})[entry.key] = entry
        entry.indexed = (*entry.indexed, *pairs)


def require_same(known: Extract | None, extract: Extract, *, resource: Resource, field: str) -> None:
    """Raise ProviderError where a field is already indexed by another function; `known` is that one."""
    if known is not None and known != extract:
        raise ProviderError(
            f"field {field!r} of {resource} is already indexed by another function: choose another name"
        )
