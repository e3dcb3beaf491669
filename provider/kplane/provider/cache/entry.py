"""Entries of a cache: the JSON of an object, and the decoded metadata that every reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import orjson
from msgspec import Raw, Struct

from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import TypedKind
from kplane.provider.client.wire import decode, status_error
from kplane.provider.errors import DecodeFailed, Unreachable

__all__ = ["Change", "Entry", "EntryReader", "Key", "Object", "version_of"]

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""

Object = dict[str, Any]
T = TypeVar("T")

_ABSENT: Final = Raw()
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
_MANAGED: Final = b'"managedFields":'
_COMMA: Final = ord(",")
_TYPES: Final = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
_HEADS: Final = {kind: b'{"type":"%s","object":' % kind.encode() for kind in _TYPES[:3]}
_INITIAL_END: Final = "k8s.io/initial-events-end"
_SHARED_TEXTS: Final = 2048
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _Metadata(Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - as in JSON
    generation: int = 0
    deletionTimestamp: str | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    managedFields: Raw = _ABSENT  # noqa: N815


class _Object(Struct, gc=False):
    metadata: _Metadata


class _Type(Struct, gc=False):
    apiVersion: str = ""  # noqa: N815
    kind: str = ""


class _Event(Struct, gc=False):
    type: str
    object: _Object


class _RawEvent(Struct, gc=False):
    type: str
    object: Raw


class _Bookmark(Struct, gc=False):
    annotations: dict[str, str] | None = None


class _PageMetadata(Struct, gc=False):
    resourceVersion: str = ""  # noqa: N815
    token: str | None = msgspec.field(default=None, name="continue")


class _Page(Struct, gc=False):
    metadata: _PageMetadata
    items: list[Raw] | None = None


_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_raw_event: Final = msgspec.json.Decoder(_RawEvent).decode
_decode_object: Final = msgspec.json.Decoder(_Object).decode
_decode_type: Final = msgspec.json.Decoder(_Type).decode
_decode_metadata: Final = msgspec.json.Decoder(_Metadata).decode
_decode_parts: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_bookmark: Final = msgspec.json.Decoder(_Bookmark).decode
_decode_page: Final = msgspec.json.Decoder(_Page).decode


class Entry(Struct, gc=False, eq=False):
    """A cached object without managedFields. An `EntryReader` decodes the rest of its JSON."""

    _metadata: _Metadata
    raw: bytes
    indexed: tuple[tuple[str, str], ...] = ()
    """Names and values of the field indexes that contain this entry."""
    decoded: dict[type[Any], Any] | None = None
    """Instances by class, or a DecodeFailed that was never raised. A raised exception references frames that hold this
    entry, and a Struct without garbage collection would never free such a cycle."""

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self._metadata.name

    @property
    def namespace(self) -> str:
        """`metadata.namespace`; empty for cluster-scoped kinds."""
        return self._metadata.namespace

    @property
    def key(self) -> Key:
        """Namespace and name."""
        metadata = self._metadata
        return metadata.namespace, metadata.name

    def with_namespace(self, namespace: str) -> Entry:
        """Return the entry under another namespace; the JSON stays as it is."""
        return Entry(msgspec.structs.replace(self._metadata, namespace=namespace), self.raw, self.indexed)

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self._metadata.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`."""
        return self._metadata.resourceVersion

    @property
    def version(self) -> int:
        """The resourceVersion as a number; see `version_of`."""
        return version_of(self._metadata.resourceVersion)

    @property
    def generation(self) -> int:
        """`metadata.generation`; 0 for kinds that have none."""
        return self._metadata.generation

    @property
    def deleting(self) -> bool:
        """Whether it has a deletionTimestamp."""
        return self._metadata.deletionTimestamp is not None

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, which cannot be changed."""
        labels = self._metadata.labels
        return MappingProxyType(labels) if labels else _EMPTY


def version_of(resource_version: str) -> int:
    """Return a resourceVersion as a number, 0 if it is none. Versions of one kind and server grow (KEP-5504)."""
    return int(resource_version) if resource_version.isdecimal() else 0


class Change(NamedTuple):
    """An event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK. `initial_end` marks the end of the initial objects."""

    type: str
    entry: Entry
    initial_end: bool = False


class EntryReader:
    """Makes entries of the JSON that a server sends, and decodes entries. All input is checked.

    With `metadata_only`, an entry keeps only the bytes of the metadata, even if the server sends more.
    """

    def __init__(self, resource: Resource, *, server: str, metadata_only: bool = False) -> None:
        self.resource: Final = resource
        self._server = server
        self.metadata_only: Final = metadata_only
        self._texts: dict[str, str] = {}

    def change(self, line: bytes) -> Change:
        """Read a line of a watch. Raises the ApiError of an ERROR event, and Unreachable for a malformed line."""
        if not self.metadata_only:
            try:
                event = _decode_event(line)
            except _MALFORMED:
                pass
            else:
                head = _HEADS.get(event.type)
                # Every API server writes these events this way. Bookmarks and other formats take the slow path.
                if head is not None and line.startswith(head) and line.endswith(b"}"):
                    return Change(event.type, self._entry(event.object.metadata, line[len(head) : -1]))
        return self._any_change(line)

    def entry(self, raw: bytes) -> Entry:
        """Read an object. Raises Unreachable if the JSON is no object."""
        try:
            if self.metadata_only:
                raw = bytes(_decode_parts(raw)["metadata"])
                return self._entry(_decode_metadata(raw), raw)
            return self._entry(_decode_object(raw).metadata, raw)
        except (*_MALFORMED, KeyError) as error:
            raise self._malformed() from error

    def page(self, body: bytes) -> tuple[list[Entry], str, str | None]:
        """Read a page of a list: objects, resourceVersion, and the token of the next page."""
        try:
            page = _decode_page(body)
        except _MALFORMED as error:
            decode(body, server=self._server)
            raise Unreachable(
                f"{self._server} answered with no list of {self.resource.plural}", kind="protocol"
            ) from error
        entries = [self.entry(bytes(item)) for item in page.items or ()]
        return entries, page.metadata.resourceVersion, page.metadata.token or None

    def decode(self, entry: Entry) -> Object:
        """Return a new dict with the whole object. Raises Unreachable if the server sent no object."""
        whole = self._decoded(entry.raw)
        if self.metadata_only:
            return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": whole}
        whole.setdefault("apiVersion", self.resource.api_version)
        whole.setdefault("kind", self.resource.kind)
        return whole

    def decode_as(self, entry: Entry, kind: TypedKind[T], *, source: str) -> T:
        """Return the object as an instance of a class, made once for each version and shared by all readers.

        Raises DecodeFailed, and as `decode`.
        """
        if entry.decoded is None:
            entry.decoded = {}
        decoded = entry.decoded.get(kind.type)
        if decoded is None:
            try:
                decoded = kind.decode(self.decode(entry), source=source)
            except DecodeFailed as failure:
                decoded = DecodeFailed(*failure.args)
            entry.decoded[kind.type] = decoded
        if isinstance(decoded, DecodeFailed):
            raise DecodeFailed(*decoded.args)
        return cast("T", decoded)

    def decode_metadata(self, entry: Entry) -> Object:
        """Return only the metadata, which is much cheaper to decode for large objects."""
        if self.metadata_only:
            return self._decoded(entry.raw)
        try:
            return self._decoded(bytes(_decode_parts(entry.raw)["metadata"]))
        except (*_MALFORMED, KeyError) as error:
            raise self._malformed() from error

    def encoded(self, entry: Entry) -> bytes:
        """Return the stored JSON of the whole object, with apiVersion and kind. Raises as `decode`."""
        api_version, kind = self.resource.api_version.encode(), self.resource.kind.encode()
        if self.metadata_only:
            return b'{"apiVersion":"%s","kind":"%s","metadata":%s}' % (api_version, kind, entry.raw)
        try:
            type_meta = _decode_type(entry.raw)
        except _MALFORMED as error:
            raise self._malformed() from error
        # Items of a list have no apiVersion and no kind.
        if type_meta.apiVersion and type_meta.kind:
            return entry.raw
        return orjson.dumps(self.decode(entry))

    def encode(self, obj: Object) -> Entry:
        """Make an entry of an object. Raises ValueError or TypeError if the dict is no object of the kind."""
        try:
            return self.entry(orjson.dumps(obj))
        except Unreachable as error:
            raise ValueError(f"it is no {self.resource.kind} object") from error

    def _any_change(self, line: bytes) -> Change:
        try:
            event = _decode_raw_event(line)
        except _MALFORMED as error:
            decode(line, server=self._server)
            raise self._no_event() from error
        if event.type == "ERROR":
            status = decode(bytes(event.object), server=self._server)
            if isinstance(status, dict):
                raise status_error(status, asked=f"watch of {self.resource.plural}")
        if event.type not in _TYPES:
            raise self._no_event()
        entry = self.entry(bytes(event.object))
        return Change(event.type, entry, event.type == "BOOKMARK" and self._ends_initial(event.object))

    def _ends_initial(self, bookmark: Raw) -> bool:
        try:
            annotations = _decode_bookmark(_decode_parts(bookmark)["metadata"]).annotations
        except _MALFORMED as error:
            raise self._malformed() from error
        return annotations is not None and annotations.get(_INITIAL_END) == "true"

    def _entry(self, metadata: _Metadata, raw: bytes) -> Entry:
        managed, metadata.managedFields = metadata.managedFields, _ABSENT
        if managed:
            raw = self._without(managed, raw)
        metadata.namespace = self._shared(metadata.namespace)
        labels = metadata.labels
        if labels:
            for key in labels:
                labels[key] = self._shared(labels[key])
        return Entry(metadata, raw)

    def _without(self, managed: Raw, raw: bytes) -> bytes:
        # A quote after a comma begins a key or a string in JSON. So if the key occurs once, and the value of the
        # metadata follows it, both can be cut out. Otherwise, or if the key comes first, decode and encode the object.
        begin = raw.find(_MANAGED)
        value = begin + len(_MANAGED)
        end = value + len(managed)
        if begin > 0 and raw[begin - 1] == _COMMA and raw.startswith(managed, value) and raw.find(_MANAGED, end) < 0:
            return raw[: begin - 1] + raw[end:]
        whole = self._decoded(raw)
        (whole if self.metadata_only else cast("Object", whole["metadata"])).pop("managedFields", None)
        return orjson.dumps(whole)

    def _shared(self, text: str) -> str:
        """Intern a text, so that many objects share one string."""
        texts = self._texts
        if len(texts) >= _SHARED_TEXTS and text not in texts:
            texts.clear()
        return texts.setdefault(text, text)

    def _decoded(self, raw: bytes) -> Object:
        # The fast path skips most fields unchecked: strings may not be UTF-8.
        decoded = decode(raw, server=self._server)
        if not isinstance(decoded, dict):
            raise self._malformed()
        return cast("Object", decoded)

    def _malformed(self) -> Unreachable:
        return Unreachable(
            f"{self._server} answered with something that is no {self.resource.kind} object", kind="protocol"
        )

    def _no_event(self) -> Unreachable:
        return Unreachable(f"{self._server} sent something that is no watch event", kind="protocol")
