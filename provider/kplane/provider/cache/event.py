"""What handlers of an informer are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from typing_extensions import override

from kplane.provider.cache.entry import Entry, EntryReader, Object
from kplane.provider.client.resources import Resource

__all__ = ["Event", "EventKind"]

EventKind = Literal["ADDED", "MODIFIED", "DELETED"]


class Event:
    """One change of one object. `initial`: it was there before, and the handler gets to know of it.

    The object is decoded when somebody reads it, once for all handlers of the event: copy it before you change it.
    DELETED has the object as it was at last, MODIFIED the one before in `old`.
    """

    __slots__ = ("_metadata", "_object", "_old", "_old_metadata", "entry", "initial", "kind", "old_entry", "reader")

    def __init__(
        self,
        kind: EventKind,
        entry: Entry,
        *,
        reader: EntryReader,
        old: Entry | None = None,
        initial: bool = False,
    ) -> None:
        self.kind: Final[EventKind] = kind
        self.initial: Final = initial
        self.entry: Final = entry
        """The object's cheap part: labels, generation and such, decoded already."""
        self.old_entry: Final = old
        """That of the object before the change."""
        self.reader: Final = reader
        """What decodes it."""
        self._object: Object | None = None
        self._metadata: Object | None = None
        self._old: Object | None = None
        self._old_metadata: Object | None = None

    @override
    def __repr__(self) -> str:
        return f"Event({self.kind} {self.resource} {'/'.join(filter(None, self.entry.key))})"

    @property
    def resource(self) -> Resource:
        """Of which kind the object is."""
        return self.reader.resource

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.entry.name

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty for cluster-scoped kinds."""
        return self.entry.namespace

    @property
    def uid(self) -> str:
        """UID of the object."""
        return self.entry.uid

    @property
    def resource_version(self) -> str:
        """resourceVersion of the object."""
        return self.entry.resource_version

    @property
    def generation(self) -> int:
        """Generation of the object; 0 for kinds that have none."""
        return self.entry.generation

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the object."""
        return self.entry.labels

    @property
    def deleting(self) -> bool:
        """Whether the object has a deletionTimestamp."""
        return self.entry.deleting

    @property
    def object(self) -> Object:
        """The whole object, without managedFields. Raises Unreachable where the server sent something that is none."""
        if self._object is None:
            self._object = self.reader.decode(self.entry)
        return self._object

    @property
    def metadata(self) -> Object:
        """All metadata of the object, e.g. annotations and owners: for large objects less work than `object`."""
        if self._metadata is None:
            self._metadata = self.reader.decode_metadata(self.entry)
        return self._metadata

    @property
    def old(self) -> Object | None:
        """The whole object before the change, for MODIFIED."""
        if self._old is None and self.old_entry is not None:
            self._old = self.reader.decode(self.old_entry)
        return self._old

    @property
    def old_metadata(self) -> Object | None:
        """All metadata of the object before the change, for MODIFIED."""
        if self._old_metadata is None and self.old_entry is not None:
            self._old_metadata = self.reader.decode_metadata(self.old_entry)
        return self._old_metadata
