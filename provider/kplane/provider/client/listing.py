"""Lists in pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, cast

from kplane.provider.client.limits import Intake
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, ObjectT, typed_of
from kplane.provider.client.wire import decode, read_object
from kplane.provider.errors import AnswerTooLarge, Unreachable

__all__ = ["JSON", "METADATA", "METADATA_LIST", "Listing", "ObjectList", "Pages", "listed"]

JSON: Final = "application/json"
# As in upstream's metadata client. A server without PartialObjectMetadata sends whole objects, which are cut here.
METADATA: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
METADATA_LIST: Final = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[ObjectT]):
    """The objects of a collection at `resource_version`, without managedFields."""

    items: list[ObjectT]
    resource_version: str


class Pages(Protocol):
    """A list that is read page by page."""

    @property
    def accept(self) -> str:
        """Media type for the Accept header."""
        ...

    def add(self, body: bytes, *, intake: Intake) -> str | None:
        """Add a page, and return the token of the next page. Raises Unreachable if the body is no page."""


@dataclass(slots=True)
class Listing:
    """A list of decoded objects."""

    resource: Resource
    server: str
    metadata_only: bool = False
    max_items: int | None = None
    items: list[dict[str, Any]] = field(default_factory=list)
    resource_version: str = ""

    @property
    def accept(self) -> str:
        """Media type for the Accept header."""
        return METADATA_LIST if self.metadata_only else JSON

    def add(self, body: bytes, *, intake: Intake) -> str | None:
        """Add a page, and return the token of the next page. Raises Unreachable if the body is no page."""
        intake.parse(body)
        page = decode(body, server=self.server)
        metadata = page.get("metadata") if isinstance(page, dict) else None
        found = page.get("items") if isinstance(page, dict) else None
        if not isinstance(metadata, dict) or not isinstance(found, (list, type(None))):
            raise Unreachable(f"{self.server} answered with no list of {self.resource.plural}", kind="protocol")
        found = found or []
        if self.max_items is not None and len(self.items) + len(found) > self.max_items:
            raise AnswerTooLarge(
                f"{self.server} has more {self.resource.plural} of those asked for than {self.max_items}; refused"
            )
        self.items += map(self._read, found)
        self.resource_version = str(metadata.get("resourceVersion", ""))
        return metadata.get("continue") or None

    def _read(self, item: object) -> dict[str, Any]:
        kind = self.resource.kind
        found = read_object(item, server=self.server, api_version=self.resource.api_version, kind=kind)
        if not self.metadata_only:
            return found
        return {"apiVersion": self.resource.api_version, "kind": kind, "metadata": found["metadata"]}


def listed(kind: Kind[ObjectT], listing: Listing, *, source: str) -> ObjectList[ObjectT]:
    """Return the objects of a list by their kind.

    Raises DecodeFailed if the class cannot decode one of them: to leave it out would make it look like gone.
    """
    typed = None if listing.metadata_only else typed_of(kind)
    if typed is None:
        return ObjectList(cast("list[ObjectT]", listing.items), listing.resource_version)
    return ObjectList([typed.decode(each, source=source) for each in listing.items], listing.resource_version)
